//! A replayed node for tests.

use std::collections::BTreeMap;

use super::Host;

impl Host {
    /// A node with these files, each a path below `/` and its text, and no variables. The node exists
    /// as long as the folder.
    pub fn of_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let host = Host::replayed(root.path(), BTreeMap::new());
        (root, host)
    }
}
