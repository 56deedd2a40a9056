#!/usr/bin/env python3
"""Components around a job: container runtimes, schedulers, launchers, ssh.

around.py COMPONENT GIT-DIRECTORY [REF…]   as extract.py, whose table it extends
"""
import re
import sys

import extract
from extract import COMPONENTS, Call, Component, Python, Strings

GO = [
    Call(r"(?:fmt\.Errorf|errors\.Errorf|grpc\.Errorf|status\.Errorf)", "error", printf=True),
    Call(r"errors\.New", "error"),
    Call(r"errors\.Wrapf?", "error", first=1, printf=True),
]
RUNC = ("Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        "unable to start container process: error during container init: {text}: unknown")


def c(level_calls):
    """Calls of C whose message is a format."""
    return [Call(name, how, first=first, printf=True) for name, how, first in level_calls]
TRACE = extract.RAISED.replace("{library}", "/opt/venv/lib/python3.11/site-packages/{path}")

COMPONENTS.update({
    "runc": Component(
        title="runc", source="github:opencontainers/runc", refs=["v1.5.1", "v1.1.12"],
        files=r"^libcontainer/(standard_init_linux|setns_init_linux|init_linux|rootfs_linux|mount_linux|container_linux|process_linux|"
              r"factory_linux|network_linux|notify_linux|message_linux|sync|console_linux|error|cgroups/.*|seccomp/.*|apparmor/.*|keys/.*|"
              r"capabilities/.*|system/.*|specconv/.*|configs/validate/.*|configs/(mount|namespaces).*|utils/.*|user/.*|dmz/.*|exeseal/.*|nsenter/.*)\.(go|c)$",
        calls=GO + c([("bail", "error", 0), ("bailx", "error", 0)]),
        frames={"error": RUNC},
        but=r"_test\.go$|/integration/|criu|/stats|/intelrdt/|/testdata/|_unsupported|cgroups/devices/|ebpf|/eventfd|/fscommon/utils",
    ),
    "nvidia-container": Component(
        title="libnvidia-container, nvidia-container-cli", source="github:zexi/libnvidia-container", refs=["HEAD"],
        files=r"^src/.*\.c$",
        calls=[Call(r"error_setx", "cli", first=1, printf=True), Call(r"error_set(?:_nvml|_dxcore|_rpc)?", "cli errno", first=1, printf=True),
               Call(r"error_set_(?:cuda|elf)", "cli", first=1, printf=True), Call(r"error_from_\w+", "cli", first=1, printf=True),
               Call(r"log_err(?:f)?", "log", printf=True), Call(r"warnx?", "cli", printf=True), Call(r"errx", "cli", first=1, printf=True), Call(r"argp_error", "cli", first=1, printf=True)],
        frames={"cli": "nvidia-container-cli: {text}", "log": "E1130 10:11:12.131000 4242 {file}:81] {text}"},
    ),
    "nvidia-container-toolkit": Component(
        title="NVIDIA Container Toolkit", source="github:NVIDIA/nvidia-container-toolkit", refs=["v1.20.0"],
        files=r"^(cmd/(nvidia-container-runtime|nvidia-container-runtime-hook|nvidia-cdi-hook|nvidia-container-runtime\..*)|internal|pkg/nvcdi)/.*\.go$",
        calls=GO + [Call(r"log\.Panicf?(?:ln)?", "hook", printf=True), Call(r"log\.Fatalf?", "hook", printf=True)],
        frames={"error": "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: failed to create NVIDIA Container Runtime: failed to construct OCI spec modifier: {text}: unknown.",
                "hook": "nvidia-container-runtime-hook: {text}"},
        but=r"_test\.go$|/test/|/testdata/|cmd/nvidia-ctk|mock",
    ),
    "slurm": Component(
        title="Slurm: srun, sbatch, salloc, slurmstepd", source="github:SchedMD/slurm", refs=["slurm-26-05-3-1", "slurm-23-02-7-1"],
        files=r"^src/(srun|sbatch|salloc)/.*\.c$|^src/api/(step_launch|step_io|step_ctx|allocate|allocate_msg|submit|step_launch)\.c$|"
              r"^src/slurmd/slurmstepd/.*\.c$|^src/common/(slurm_errno|slurm_opt|slurm_resource_info|proc_args|tres_bind|tres_freq)\.c$|^src/interfaces/mpi\.c$|^src/plugins/mpi/pmix/(mpi_pmix|pmixp_info|pmixp_server|pmixp_nspaces)\.c$",
        but=r"x11_forwarding|ulimits|/multi_prog|pdebug|xlate|step_terminate_monitor|srun_pty|/read_oci|oci_config|stepd_sstat|container\.c|fname|slurmstepd/(req|io)\.c",
        calls=c([("error", "srun error", 0), ("fatal", "srun fatal", 0), ("error_in_daemon", "srun error", 0), ("fatal_abort", "srun fatal", 0)])
              + [Strings(r'ERRTAB_ENTRY\(\s*(?P<name>\w+)\s*\)\s*,\s*"(?P<text>(?:[^"\\]|\\.)*)"', "errno"),
                 Strings(r'\{\s*(?P<name>(?:ESLURM|SLURM|ESLURMD|ESPANK|ESCRIPT|ESTEP|EPMIX)\w*)\s*,\s*"(?P<text>(?:[^"\\]|\\.)*)"\s*\}', "errno")],
        frames={"srun error": "srun: error: {text}", "srun fatal": "srun: fatal: {text}", "slurmstepd error": "slurmstepd: error: {text}", "slurmstepd fatal": "slurmstepd: fatal: {text}", "errno": "srun: error: Unable to allocate resources: {text}"},
    ),
    "hydra": Component(
        title="MPICH hydra", source="github:pmodels/mpich", refs=["v5.0.1"],
        files=r"^src/pm/hydra/.*\.c$",
        calls=c([(r"HYDU_ERR_SETANDJUMP", "mpiexec", 2), (r"HYDU_ERR_SETANDJUMP\d", "mpiexec", 2), (r"HYDU_ERR_(?:POP|CHKANDJUMP)", "mpiexec", 1), (r"HYDU_error_printf", "print", 0), (r"PMIP?U?_ERR_SETANDJUMP\d?", "mpiexec", 2), (r"HYDU_ASSERT", "mpiexec", 9),]),
        frames={"mpiexec": "[mpiexec@node-1] {function} ({path}:81): {text}", "print": "[mpiexec@node-1] {text}"},
    ),
    "openssh": Component(
        title="OpenSSH client", source="github:openssh/openssh-portable", refs=["V_10_5_P1", "V_8_9_P1"],
        files=r"^(ssh|sshconnect|sshconnect2|packet|kex|ssherr|clientloop|readconf)\.c$",
        calls=c([(r"fatal|error|logdie", "ssh", 0), (r"ssh_packet_disconnect", "ssh", 1)])
              + [Strings(r'case (?P<name>SSH_ERR_\w*(?:KEY|FORMAT|BIGNUM|EC_|CERT|AGENT|PASSPHRASE|LIBCRYPTO|FILE|KRL|ARGUMENT|DEVICE|SIGN)\w*):\s*return "(?P<text>[^"]+)"', "key"),
                 Strings(r'case (?P<name>SSH_ERR_(?:INTERNAL_ERROR|ALLOC_FAIL|MESSAGE_INCOMPLETE|MAC_INVALID|NO_\w+_MATCH|NO_\w+_ALG_MATCH|PROTOCOL_\w+|NO_PROTOCOL_VERSION|NEED_REKEY|NO_REKEY|CONN_\w+|INVALID_LENGTH|FEATURE_UNSUPPORTED|DH_GEX_OUT_OF_RANGE|UNEXPECTED_TRAILING_DATA|NO_BUFFER_SPACE|BUFFER_READ_ONLY)):\s*return "(?P<text>[^"]+)"', "ssherr")],
        frames={"ssh": "{text}", "key": "Load key \"/root/.ssh/id_ed25519\": {text}", "ssherr": "ssh_dispatch_run_fatal: Connection to 10.0.0.4 port 22: {text}"},
    ),
    "pyxis": Component(
        title="pyxis", source="github:NVIDIA/pyxis", refs=["v0.24.0", "v0.20.1"],
        files=r"\.c$", calls=c([("slurm_error", "srun", 0), ("slurm_spank_log", "spank", 0)]),
        frames={"srun": "slurmstepd: error: {text}", "spank": "{text}"},
    ),
    "containerd": Component(
        title="containerd", source="github:containerd/containerd", refs=["v2.2.7"],
        files=r"^(internal/cri/server/(container_create|container_create_linux|container_start|sandbox_run|sandbox_run_linux|helpers|helpers_linux|podsandbox/sandbox_run|podsandbox/helpers|images/image_pull)|internal/cri/opts/(spec_linux_opts|spec_opts|container|task)|core/runtime/v2/(shim|shim_manager|task_manager|binary|bundle)|core/unpack/unpacker|core/remotes/docker/(fetcher|resolver|authorizer|handler)|cmd/containerd-shim-runc-v2/.*|pkg/oci/(spec_opts|spec_opts_linux|utils_unix|mounts)|pkg/cdi/.*|core/content/helpers)\.go$",
        calls=GO, frames={"error": "  Warning  Failed  4s  kubelet  Error: failed to create containerd container: {text}"},
        but=r"_test\.go$|windows|/testutil/|fuzz|freebsd|darwin|/testsuite|metrics|/stats",
    ),
})


def go(text):
    """Raw strings become plain ones; verbs of Go become those of C."""
    text = re.sub(r"`([^`\n]*)`", lambda f: '"' + f[1].replace("\\", "\\\\").replace('"', '\\"') + '"', text)
    return re.sub(r"%[+#]*[vwqTt]", "%s", text)


of_source = extract.of_file


class Topics:
    """Topics of a help file of Open MPI: `[name]` and the words below."""


class Shell:
    """`common::err "…"` of a shell script."""


def of_topics(text):
    name, begin, lines = "", 0, []
    for number, line in enumerate(text.splitlines() + ["[end]"], 1):
        if line.startswith("#"):
            continue
        header = re.fullmatch(r"\[([^\]]+)\]\s*", line)
        if not header:
            lines.append(line.strip())
            continue
        said = "\n".join(line for line in lines if line and not re.fullmatch(r"[-=*]+", line))
        if said:
            yield begin, name, "topic", re.sub(r"^(?=\{s\})\{s\}", "mpirun", extract.printed(said))
        name, begin, lines = header[1], number, []


def of_shell(text):
    for found in re.finditer(r'common::(err|log (?:ERROR|WARN)) "((?:[^"\\]|\\.|\$\([^)]*\))*)"', text):
        said = re.sub(r"\$\{[^}]*\}|\$\([^)]*\)|\$[\w@?#*]+", "{}", found[2])
        yield text.count("\n", 0, found.start()) + 1, "", found[1], said


def of_file(path, text, calls):
    if path.endswith(".go"):
        text = go(text)
    if any(isinstance(call, Topics) for call in calls):
        yield from of_topics(text)
    elif any(isinstance(call, Shell) for call in calls):
        yield from of_shell(text)
    else:
        for line, function, how, said in of_source(path, text, calls):
            if path.endswith(".py") and not re.search(r"[A-Za-z]{3}", said):
                continue
            # Failures of ssh as a client for forwarding and of its own buffers do not end a job.
            if how.startswith("ssh") and (re.search(r"X11|forward|tunnel|Tunnel|mux|control|-[JNOsWyE]\b|pledge|sshbuf|fingerprint|hostkeys|percent|StdinNull|xauth|CNAME|cname|osigset|bsigset|break-in|ref_count|npfd|Can(?:not|'t) specify|daemon|query|SetEnv|escape", said) or len(said) < 12 or " " not in said):
                continue
            if how == "errno" and re.search(r"HTTP|REST_|DATA|URL|LUA|FED|_DB_|DB_|PLUGIN|OPENAPI|MIME|PARS|JOBID|STEPID|SLUID|HETSTEP|HET_STEP|ARRAY|SCRONTAB|CRON|CHANGE|RPC|WOULD_BLOCK|UNIX|PERSIST|ASSOC|ACCOUNT_|QOS_(?!THRES)|CLUSTER|COORD|UPDATE|MODIF|REBOOT|QUERY|RESULT|TAKEOVER|DOWNNODES|TRIGGER|ADD_NODE|SUSPEND|REQUEUE|HELD|NOTIFY|ALREADY|NOT_(?:SUSP|PEND|RUN|FIN)|POWER|RSV|SUCCESS|EINPROGRESS|SWITCH|SIGNED|DYN|CONFIG|LAYOUT|SIBLING|STATS|CALLBACK|TOPO|JOBS_RUNNING|TLS|REGEX|TOKEN|STDIN|EMPTY|CONTEXT|KILL_CON|CMD|CAN_NOT|_NOT_SUPP|BUFFER|NULL|FLAG|CORE_RES|RES_CORES", function):
                continue
            if "slurm" in path or path.startswith("src/s"):
                if re.search(r"x11|xauth|_set_env|set_envs|set_prio|spank_env|_on_signal|cleanup|_rlimit|mem_auto|epilog", function, re.I):
                    continue
            # What slurmstepd prints reaches the user through srun, with its own name.
            yield line, function, how.replace("srun", "slurmstepd") if "/slurmstepd/" in path or "/plugins/" in path else how, said


extract.of_file = of_file

COMPONENTS.update({
    "openmpi": Component(title="Open MPI 4 and ORTE", source="github:open-mpi/ompi", refs=["v4.1.6"],
        files=r"^orte/.*help-(orterun|errmgr-base|ess-base|plm-base|plm-rsh|plm-slurm|hostfile|dash-host|orte-rmaps-base|orte-rmaps-ppr|orte-rmaps-rr|rmaps_rank_file|orte-odls-base|orte-odls-default|orte-runtime|oob-base|oob-tcp|ras-base|ras-slurm|orte-rtc-hwloc|orted|state-base)\.txt$"
              r"|^ompi/.*help-(mpi-runtime|mpi-errors|mpi-btl-base|mpi-btl-tcp|mca-bml-r2)\.txt$",
        calls=[Topics()], frames={"topic": "{text}"}, but=r"nothing"),
    "prrte": Component(title="PRRTE (Open MPI 5)", source="github:openpmix/prrte", refs=["v3.0.14"],
        files=r"help-[\w-]*\.txt$", calls=[Topics()], frames={"topic": "{text}"},
        but=r"help-(?:prte-info|pterm|psched|prun|plm-lsf|plm-tm|ras-(?:lsf|gridengine|simulator|pbs)|rmaps_lsf|cli|iof-base|prte-filem-raw|prte|prterun|prted)\.txt"),
    "enroot": Component(title="enroot", source="github:NVIDIA/enroot", refs=["v4.1.2"],
        files=r"^(src|bundle)/|enroot\.in$", calls=[Shell()], frames={"err": "slurmstepd: error: pyxis: [ERROR] {text}", "log ERROR": "[ERROR] {text}", "log WARN": "[WARN] {text}"}),
})

PY = {
    "raise": TRACE, "assert": TRACE, "log": "{letter}1130 10:11:12.131000 4242 {path}:81] {text}", "print": "{text}",
}
COMPONENTS.update({
    "accelerate": Component(title="accelerate launch", source="github:huggingface/accelerate", refs=["v1.14.0"],
        files=r"^src/accelerate/(launchers|state|commands/launch|commands/config/config_args|utils/launch|utils/environment|parallelism_config)\.py$",
        calls=[Python()], frames=PY),
    "deepspeed": Component(title="DeepSpeed launcher", source="github:deepspeedai/DeepSpeed", refs=["v0.19.5"],
        files=r"^deepspeed/(launcher/(?!launcher_helper).*|elasticity/.*|runtime/config|utils/numa)\.py$",
        calls=[Python()], frames=PY),
    "huggingface-hub": Component(title="huggingface_hub", source="github:huggingface/huggingface_hub", refs=["v1.28.0", "v0.26.0"],
        files=r"^src/huggingface_hub/(file_download|_snapshot_download|utils/_http|utils/_headers|utils/_validators|errors|utils/_fixes|utils/_xet)\.py$",
        calls=[Python()], frames=PY),
    "datasets": Component(title="datasets", source="github:huggingface/datasets", refs=["5.0.1"],
        files=r"^src/datasets/(load|builder|utils/file_utils|download/.*|data_files|utils/info_utils|distributed)\.py$",
        calls=[Python()], frames=PY),
    "lightning": Component(title="Lightning: launch and distribution", source="github:Lightning-AI/pytorch-lightning", refs=["2.6.5"],
        files=r"^src/lightning/fabric/(strategies/launchers/.*|plugins/environments/.*|accelerators/cuda)\.py$",
        calls=[Python()], frames=PY),
    "verl": Component(title="verl: start", source="github:volcengine/verl", refs=["v0.7.0"],
        files=r"^verl/(single_controller/.*|trainer/main_ppo|trainer/ppo/ray_trainer|utils/(distributed|config|net_utils|device)|workers/rollout/vllm_rollout/[^/]*|utils/ray_utils)\.py$",
        calls=[Python()], frames=PY),
    "openrlhf": Component(title="OpenRLHF: start", source="github:OpenRLHF/OpenRLHF", refs=["v0.11.0"],
        files=r"^openrlhf/(cli/train_ppo_ray|trainer/ray/.*|utils/(distributed_util|deepspeed/.*))\.py$",
        calls=[Python()], frames=PY),
    "vllm": Component(title="vLLM: start and distribution", source="github:HabanaAI/vllm-fork", refs=["HEAD"],
        files=r"^vllm/(v1/engine/(core|utils)|v1/executor/(abstract|multiproc_executor|ray_distributed_executor)|executor/(ray_utils|ray_distributed_executor|executor_base)|distributed/utils|v1/worker/gpu_worker|engine/arg_utils|platforms/cuda|v1/core/kv_cache_utils|config/(parallel|cache|model)|config)\.py$",
        calls=[Python()], frames=PY),
})

COMPONENTS["rccl"] = Component(
    title="RCCL", source="github:ROCm/rccl", refs=["HEAD"], files=r"^src/.*\.(cc|h|cpp)$",
    calls=[Call(r"WARN", "WARN", printf=True)], frames={"WARN": extract.NCCL_FRAME}, but=r"^src/clique/|^src/include/(clique|nvtx3)/|^src/include/mscclpp|/msccl/",
)

if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("\n".join(f"{name:16} {one.source} {' '.join(one.refs)}" for name, one in COMPONENTS.items()))
    extract.write(sys.argv[1], sys.argv[2], sys.argv[3:])
