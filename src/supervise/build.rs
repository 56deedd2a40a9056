//! Deflates the Python files of the warmed interpreter and of the ranks.

fn main() -> std::io::Result<()> {
    embed::embed_folders(&[("warm.zz", "warm", &["py"]), ("inject.zz", "inject", &["py"])])
}
