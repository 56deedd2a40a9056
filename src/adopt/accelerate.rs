//! The file of `accelerate config`: what it says about the nodes, processes and GPUs of a job where the launch line is
//! silent. accelerate itself reads it in this order (`_validate_launch_command` in its launch.py): an option wins.

use settings::launchers::FlagField;
use text::lang::Text;
use text::text;
use text::yaml;

use crate::classes::{Note, NoteKind};
use crate::sizes::{Files, Said};
use crate::values::Expanded;
use crate::words::quoted;

/// The keys that are options as well. The rank of a machine holds for one machine only.
const KEYS: &[(&str, FlagField)] = &[
    ("num_machines", FlagField::Nnodes),
    ("num_processes", FlagField::Processes),
    ("main_process_ip", FlagField::MasterAddr),
    ("main_process_port", FlagField::MasterPort),
];

/// Adds to the words of an accelerate line what its file says.
pub(crate) fn add_config(said: &mut Said, files: Files<'_>, notes: &mut Vec<Note>) {
    let named = said.others.iter().find(|(flag, _)| flag == "--config-file");
    let Some(name) = named.and_then(|(_, value)| value.as_ref()?.value.clone()) else { return };
    let mut note = |kind, text| notes.push(Note { kind, text });
    let root = files(&name).and_then(|text| {
        let no_map = || text!("it is not YAML", "不是 YAML");
        yaml::document(&text).ok_or_else(no_map)
    });
    let root = match root {
        Ok(root) => root,
        Err(Text { en, zh }) => {
            return note(
                NoteKind::NotUnderstood,
                text!(
                    "{name} is not read ({en}): the nodes, processes and GPUs that it names are not in this answer; give it as well: ranklaunch adopt SCRIPT {name}",
                    "未读取 {name}（{zh}）：其中的节点数、进程数和 GPU 未计入；请一并给出：ranklaunch adopt 脚本 {name}"
                ),
            );
        }
    };
    // A key with null is one that is not there.
    let value = |key: &str| root.get(key).and_then(yaml::Node::text);
    let Some(mode) = value("distributed_type") else {
        return note(
            NoteKind::Wrong,
            text!(
                "accelerate refuses {name}: it has no distributed_type",
                "accelerate 会拒绝 {name}：缺少 distributed_type"
            ),
        );
    };
    let place = value("compute_environment").unwrap_or("LOCAL_MACHINE");
    if place != "LOCAL_MACHINE" || matches!(mode, "XLA" | "TPU") {
        return note(
            NoteKind::NotUnderstood,
            text!(
                "{name} is for {place}, {mode}: accelerate starts such a job in a way of its own, so nothing of it is read",
                "{name} 针对 {place}、{mode}：accelerate 以自己的方式启动此类任务，因此未读取其内容"
            ),
        );
    }
    let mut added = Vec::new();
    for (key, field) in KEYS {
        let number = if mode == "NO" { Some("1") } else { None };
        let known = value(key).or(number.filter(|_| *key == "num_processes"));
        let Some(text) = known.filter(|_| !said.fields.contains_key(field)) else { continue };
        if *key == "num_processes" && text == "-1" {
            continue;
        }
        said.fields.insert(*field, literal(text));
        let says = value(key).is_some() && !(*key == "num_machines" && text == "1");
        added.extend(says.then(|| format!("{key} {text}")));
    }
    if !said.fields.contains_key(&FlagField::Processes) {
        note(
            NoteKind::Wrong,
            text!(
                "{name} leaves the number of processes to the line, which names none: accelerate refuses to start",
                "{name} 把进程数留给命令行，而命令行没有给出：accelerate 会拒绝启动"
            ),
        );
    }
    let devices = value("gpu_ids").filter(|ids| *ids != "all");
    if let Some(ids) = devices.filter(|_| said.others.iter().all(|(flag, _)| flag != "--gpu-ids")) {
        let ids: String = ids.chars().filter(|c| !c.is_whitespace()).collect();
        added.push(format!("gpu_ids {ids}"));
        said.others.push(("--gpu-ids".to_owned(), Some(literal(&ids))));
    }
    let nodes = said.fields.get(&FlagField::Nnodes);
    let is_one = nodes.is_none_or(|nodes| nodes.value.as_deref() == Some("1"));
    if let Some(rank) = value("machine_rank")
        && !is_one
        && !said.fields.contains_key(&FlagField::NodeRank)
    {
        note(
            NoteKind::Wrong,
            text!(
                "machine_rank {rank} of {name} is the number of one machine, but all nodes run the same line: NODE_RANK says it on each",
                "{name} 中的 machine_rank {rank} 是某一台机器的编号，而所有节点运行同一行：应由各节点的 NODE_RANK 给出"
            ),
        );
    }
    let starts_elsewhere =
        [("deepspeed_config", "deepspeed_hostfile"), ("mpirun_config", "mpirun_hostfile")];
    for (part, key) in starts_elsewhere {
        if let Some(hosts) = root.at(&[part, key]).and_then(yaml::Node::text) {
            note(
                NoteKind::NotUnderstood,
                text!(
                    "{key} {hosts} of {name}: ranklaunch is started on every host; --nodes host0,host1 is the same line on each",
                    "{name} 中的 {key} {hosts}：ranklaunch 在每台主机上启动；--nodes host0,host1 在各主机上是同一行"
                ),
            );
        }
    }
    if !added.is_empty() {
        let added = added.join(", ");
        note(
            NoteKind::Changes,
            text!(
                "{added} of {name}: the options of this line say it now, and win over the file",
                "{name} 中的 {added}：现由该行的选项给出，并优先于文件"
            ),
        );
    }
}

fn literal(text: &str) -> Expanded {
    Expanded { source: quoted(text), value: Some(text.to_owned()), several: false }
}

#[cfg(test)]
mod tests {
    use crate::classes::Class;
    use crate::tests::adopted_with;
    use proptest::prelude::*;

    const LINE: &str = "accelerate launch --config_file x.yaml a.py";

    #[test]
    fn file_says_what_the_line_does_not() {
        for (config, line, expected) in [
            (
                "num_machines: 2\nnum_processes: 8\nmachine_rank: 0\nmain_process_ip: 10.0.0.1\nmain_process_port: 29501\n",
                LINE,
                "ranklaunch --profile a.toml --nproc-per-node 4 --nnodes 2 --node-rank \"${NODE_RANK:?}\" --master-addr 10.0.0.1 --master-port 29501 -- a.py",
            ),
            (
                "num_processes: 8\n",
                "accelerate launch --config_file x.yaml --num_processes 4 a.py",
                "ranklaunch --profile a.toml --nproc-per-node 4 -- a.py",
            ),
            (
                "num_machines: 2\nnum_processes: 8\n",
                "accelerate launch --config_file x.yaml --num_machines 4 --machine_rank $I a.py",
                "ranklaunch --profile a.toml --nproc-per-node 2 --nnodes 4 --node-rank $I -- a.py",
            ),
            (
                "num_processes: 2\ngpu_ids: 1, 3\n",
                LINE,
                "CUDA_VISIBLE_DEVICES=1,3 ranklaunch --profile a.toml --nproc-per-node 2 -- a.py",
            ),
            (
                "num_processes: 2\ngpu_ids: all\nmain_process_ip: null\n",
                LINE,
                "ranklaunch --profile a.toml --nproc-per-node 2 -- a.py",
            ),
        ] {
            let config = format!("distributed_type: MULTI_GPU\n{config}");
            let adopted = adopted_with(line, &|_| Ok(config.clone()));
            assert_eq!(adopted.answers[0].script, expected, "{config}");
        }
        let one = adopted_with(LINE, &|_| Ok("distributed_type: 'NO'\n".to_owned()));
        assert!(one.answers[0].script.contains("--nproc-per-node 1 "), "{one:?}");
    }

    #[test]
    fn unread_files_are_said() {
        for (config, class, part) in [
            (Err(text::text!("no such file", "没有该文件")), Class::NotUnderstood, "no such file"),
            (Ok("a: [b"), Class::NotUnderstood, "not YAML"),
            (Ok("num_machines: 2\n"), Class::Wrong, "no distributed_type"),
            (Ok("distributed_type: FSDP\n"), Class::Wrong, "refuses to start"),
            (
                Ok("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"),
                Class::NotUnderstood,
                "AMAZON_SAGEMAKER",
            ),
            (
                Ok("distributed_type: FSDP\nnum_machines: 2\nnum_processes: 4\nmachine_rank: 1\n"),
                Class::Wrong,
                "machine_rank 1",
            ),
            (
                Ok(
                    "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {deepspeed_hostfile: /h}\n",
                ),
                Class::NotUnderstood,
                "deepspeed_hostfile /h",
            ),
        ] {
            let adopted = adopted_with(LINE, &|_| config.clone().map(str::to_owned));
            let found = adopted.lines.iter().filter(|line| line.class == class);
            assert!(
                found.into_iter().any(|line| line.why.en.contains(part)),
                "{config:?}: {adopted:?}"
            );
        }
    }

    proptest! {
        /// Whatever both say, an option wins over the file, and the processes of a node are those of accelerate.
        #[test]
        fn options_win_over_the_file(
            nodes in 1..5_u32, per_node in 1..9_u32, said in any::<[bool; 3]>(), other in 1..5_u32,
        ) {
            let [says_nodes, says_processes, says_port] = said;
            let of_line = if says_nodes { other } else { nodes };
            let all = of_line * per_node;
            let mut line = "accelerate launch --config_file x.yaml".to_owned();
            let mut config = format!("distributed_type: MULTI_GPU\nnum_machines: {nodes}\nmain_process_port: 1\n");
            if says_nodes {
                line += &[" --num_machines ", &other.to_string()].concat();
            }
            if says_port {
                line.push_str(" --main_process_port 2");
            }
            match says_processes {
                true => {
                    line += &[" --num_processes ", &all.to_string()].concat();
                    config.push_str("num_processes: 77\n");
                }
                false => config += &["num_processes: ", &all.to_string(), "\n"].concat(),
            }
            let adopted = adopted_with(&format!("{line} --machine_rank 0 a.py"), &|_| Ok(config.clone()));
            let launch = &adopted.launches[0];
            prop_assert_eq!(launch.nproc.clone(), Some(per_node.to_string()));
            prop_assert_eq!(launch.nodes.clone(), Some(of_line.to_string()));
            let port = if says_port { "--master-port 2" } else { "--master-port 1" };
            prop_assert!(adopted.answers[0].script.contains(port), "{}", adopted.answers[0].script);
        }
    }
}
