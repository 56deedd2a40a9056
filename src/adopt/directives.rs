//! The lines that a batch system reads in a script, such as `#SBATCH --nodes=2`.

use text::text;

use crate::classes::Class;
use crate::input::DIRECTIVES;
use crate::script::{Item, Script};

impl Script {
    pub(crate) fn directives(&mut self, text: &str) {
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let span = at..at + line.trim_end().len();
            at += line.len();
            let Some(rest) = DIRECTIVES.iter().find_map(|mark| line.strip_prefix(mark)) else {
                continue;
            };
            let bare = rest.split(" #").next().unwrap_or(rest).trim();
            let value = |names: &[&str]| {
                let found = names.iter().find_map(|name| bare.strip_prefix(name))?;
                found.trim_start_matches(['=', ' ']).parse::<u32>().ok()
            };
            if let Some(nodes) = value(&["--nodes", "-N"]) {
                self.slurm.nodes = nodes;
            }
            if let Some(tasks) = value(&["--ntasks-per-node", "--tasks-per-node"]) {
                self.slurm.tasks_per_node = tasks;
            }
            let why = text!("the batch system reads it", "由批处理系统读取");
            self.items.push(Item::new(span, Class::Kept, why, 0));
        }
        if self.slurm.nodes == 0 && text.contains("\n#SBATCH") {
            self.slurm.nodes = 1;
        }
    }
}
