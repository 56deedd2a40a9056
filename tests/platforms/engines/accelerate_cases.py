"""accelerate and its configuration files: each distributed_type, the default file, and numbers of another job."""

import json
import os
import re

from case import case, expect
from job import Job, short

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "acc.py")
# Answers to `accelerate config`, with the numbers of another job.
FILE = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {type}
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: 192.0.2.7
main_process_port: 29999
main_training_function: main
mixed_precision: '{precision}'
num_machines: {machines}
num_processes: {processes}
rdzv_backend: static
same_network: true
use_cpu: {cpu}
{more}"""
DEEPSPEED = """deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 1
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
"""
FSDP = """fsdp_config:
  fsdp_auto_wrap_policy: NO_WRAP
  fsdp_cpu_ram_efficient_loading: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
"""
MEGATRON = """megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 1
  megatron_lm_pp_degree: 1
  megatron_lm_tp_degree: 1
"""


def text(type, precision="no", machines=1, processes=8, cpu="false", more=""):
    return FILE.format(type=type, precision=precision, machines=machines, processes=processes, cpu=cpu, more=more)


def run(bench, file=None, nodes=1, environment="newest"):
    options = []
    if file:
        profile = f'[job]\nengine_args = ["--config_file", "{file}"]\n'
        options = ["--profile", bench.write("ranklaunch.toml", profile)]
    return Job(bench, "accelerate", [TRAIN], *options, nodes=nodes, pythons=(environment, environment)).ended()


def trained(bench, world, type="MULTI_CPU", precision="no"):
    """Every rank trained in one world of this size."""
    bench.says("done: all ranks ended with code 0")
    found = sorted(re.findall(r"accelerate: rank (\d+) of (\d+) (\S+) (\S+)", bench.text()))
    expected = [(str(rank), str(world), type, precision) for rank in range(world)]
    expect(found == expected, f"accelerate's ranks were {found}, expected {expected}")
    sums = sorted(re.findall(r"trained: rank (\d+) sum (\d+)", bench.text()))
    expect(sums == [(str(rank), str(world)) for rank in range(world)], f"the sums were {sums}")


def one_process(type, cpu):
    @case("accelerate", f"a file of type {type} starts one process, which is said before and is never done", 68)
    def function(bench):
        codes = run(bench, bench.write("config.yaml", text(type, cpu=cpu)))
        bench.says(f"says distributed_type: '{type}', so accelerate starts one process, but 2 are planned")
        bench.never_says("done: all ranks ended with code 0")
        return codes[0]


one_process("NO", "false")
one_process("MULTI_CPU", "true")


def several(type, more, environment="newest", warned=True):
    @case("accelerate", f"a file of type {type}" + (" trains as MULTI_CPU on CPUs, which is said" if warned else ""), 0)
    def function(bench):
        codes = run(bench, bench.write("config.yaml", text(type, more=more)), environment=environment)
        words = f"asks for {type}, which accelerate uses only on GPUs"
        expect((words in bench.text()) == warned, f"{'not ' if warned else ''}printed: {words}")
        trained(bench, 2)
        return codes[0]


several("MULTI_GPU", "", warned=False)
several("FSDP", FSDP)
several("DEEPSPEED", DEEPSPEED, "deepspeed")


@case("accelerate", "a file of type MEGATRON_LM without Megatron: its absence is the cause", 1)
def megatron(bench):
    codes = run(bench, bench.write("config.yaml", text("MEGATRON_LM", more=MEGATRON)))
    bench.says("ImportError: Megatron is not installed", "cause module_missing")
    return codes[0]


@case("accelerate", "deepspeed_16gpu.yaml of another job: the numbers of this one win", 0)
def another_job(bench):
    file = bench.write("deepspeed_16gpu.yaml", text("DEEPSPEED", machines=2, processes=16, more=DEEPSPEED))
    codes = run(bench, file, nodes=2, environment="deepspeed")
    expect(codes == [0, 0], f"ended with {codes}")
    trained(bench, 4)
    return 0


def default(name, content, type, precision):
    @case("accelerate", f"{name} in HF_HOME is respected", 0)
    def function(bench):
        os.makedirs(bench.path("huggingface/accelerate"))
        bench.write(os.path.join("huggingface", "accelerate", name), content)
        codes = run(bench)
        trained(bench, 2, precision=precision)
        bench.verdicts(1, id="done")
        decided = bench.records()[0]["plan"]["decisions"]
        found = [one for one in decided if one["what"] == "accelerate_config"]
        expect(found and name in found[0]["value"], f"run.json does not name the file: {found}")
        return codes[0]


default("default_config.yaml", text("MULTI_GPU", "bf16"), "MULTI_CPU", "bf16")

@case("accelerate", "default_config.json in HF_HOME, which accelerate does not read, changes nothing", 0)
def default_json(bench):
    os.makedirs(bench.path("huggingface/accelerate"))
    bench.write(os.path.join("huggingface", "accelerate", "default_config.json"), json.dumps({
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}))
    codes = run(bench)
    trained(bench, 2)
    return codes[0]


@case("accelerate", "default_config.yaml for one process: --multi_gpu is passed, which is said", 0)
@short
def default_of_one(bench):
    os.makedirs(bench.path("huggingface/accelerate"))
    bench.write(os.path.join("huggingface", "accelerate", "default_config.yaml"), text("NO", "bf16", processes=1))
    codes = run(bench)
    bench.says("--multi_gpu is passed instead")
    trained(bench, 2, precision="bf16")
    return codes[0]
