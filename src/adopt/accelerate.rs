//! The file of `accelerate config`: what in it is about the machine on which it was made.

use text::text;
use text::yaml;

use crate::adopted::{Adopted, Line};
use crate::classes::Class;

/// Keys that say who takes part, with the value that fits a job of any nodes.
const OF_A_MACHINE: &[(&str, &str)] =
    &[("num_machines", "1"), ("machine_rank", "0"), ("main_process_ip", ""), ("gpu_ids", "all")];

impl Adopted {
    /// Files of accelerate that the launches name.
    pub fn config_files(&self) -> &[String] {
        &self.configs
    }

    /// Whether the text is such a file.
    pub fn is_config(text: &str) -> bool {
        let root = yaml::document(text);
        root.is_some_and(|root| {
            root.get("distributed_type").is_some() && root.get("kind").is_none()
        })
    }

    /// Adds what a file of accelerate says about another machine.
    pub fn add_config(&mut self, name: &str, text: &str) {
        let Some(root) = yaml::document(text) else { return };
        let value =
            |key: &str| root.get(key).map(|node| node.text().unwrap_or_default().to_owned());
        let number = |key: &str| value(key)?.parse::<u32>().ok();
        let nodes = number("num_machines").unwrap_or(1).max(1);
        let silent = self.launches.iter().all(|launch| launch.nproc.is_none());
        if let (Some(all), Some(profile)) = (number("num_processes"), &mut self.profile)
            && silent
            && all % nodes == 0
            && !profile.text.contains("nproc_per_node")
        {
            let line = format!("[job]\nnproc_per_node = {}\n", all / nodes);
            profile.text = profile.text.replacen("[job]\n", &line, 1);
        }
        let other: Vec<String> = OF_A_MACHINE
            .iter()
            .filter_map(|(key, usual)| Some((key, value(key)?, usual)))
            .filter(|(_, value, usual)| value != **usual && !(value.is_empty() && **usual == "all"))
            .map(|(key, value, _)| {
                format!("{key} {}", if value.is_empty() { "null" } else { &value })
            })
            .collect();
        let processes = value("num_processes").filter(|_| !other.is_empty());
        let other: Vec<String> = other
            .into_iter()
            .chain(processes.map(|number| format!("num_processes {number}")))
            .collect();
        if other.is_empty() {
            return;
        }
        let shown = other.join(", ");
        let place = self.launches.first().map_or(1, |launch| launch.line);
        self.lines.push(Line {
            first: place,
            last: place,
            class: Class::Wrong,
            why: text!(
                "{name} is of another job: {shown}; those of the job win over the file's, so leave them out of it",
                "{name} 属于另一个任务：{shown}；任务自身的值优先于文件，请从文件中去掉"
            ),
        });
        self.lines.sort_by_key(|line| (line.first, line.class));
    }
}
