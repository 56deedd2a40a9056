"""The frameworks: how each writes checkpoints in a loop, where it looks for them, and how it loads one.

Every parameter of step N is -N: the gradient of the sum is one, and SGD takes steps of one. So the content of what was
loaded tells from which step it is, and a page that was never written is seen.

`candidates(folder)` gives (step, path) of all that the framework itself would call a checkpoint by name, newest first.
`load(path, step)` loads one for real and gives its step; what it raises is a checkpoint that does not load.
"""

import os
import re
import shutil

# 8 MB: a write takes some 50 to 300 ms on a busy machine.
COUNT = 120
NUMBERS = 16_384
KEPT = 3
SIZE = int(os.environ.get("CHECKPOINT_TENSORS", COUNT))


def numbered(folder, pattern):
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match = re.fullmatch(pattern, name)
        if match:
            found.append((int(match[1]), os.path.join(folder, name)))
    return sorted(found, reverse=True)


def rotate(found):
    for _, path in found[KEPT:]:
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


# What torch imports for the first optimizer: seconds, once in the server in place of once in each of its ranks.
OPTIMIZER = ("torch._dynamo",)


def parameters():
    import torch

    return torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(NUMBERS)) for _ in range(SIZE)])


def model_class(base):
    class Model(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.layers = parameters()
            if hasattr(self, "post_init"):
                self.post_init()

        def forward(self, **_):
            return {"loss": sum(one.sum() for one in self.layers)}

        def _init_weights(self, module):
            pass

    return Model


def step_of(tensors):
    """The step of all these tensors; raises if they are not of one."""
    import torch

    tensors = list(tensors)
    if len(tensors) != SIZE:
        raise ValueError(f"{len(tensors)} of {SIZE} tensors")
    step = -int(tensors[0].flatten()[0].item())
    for number, tensor in enumerate(tensors):
        if tensor.numel() != NUMBERS or not torch.equal(tensor.detach().float(), torch.full_like(tensor, -float(step), dtype=torch.float32)):
            raise ValueError(f"tensor {number} is not of step {step}")
    return step


class Format:
    ranks = 1
    pattern = r"step-(\d+)"
    below = ""
    modules = ()

    def __init__(self):
        for module in self.modules:
            __import__(module)

    def candidates(self, folder):
        return numbered(os.path.join(folder, self.below), self.pattern)

    def state(self, step):
        import torch

        return {f"layer.{number}": torch.full((NUMBERS,), -float(step)) for number in range(SIZE)}

    def write(self, folder, rank):
        """Writes checkpoints until it is killed."""
        step = 0
        while True:
            step += 1
            self.save(folder, step)
            if rank == 0:
                rotate(self.candidates(folder))


class Torch(Format):
    pattern = r"step-(\d+)\.pt"
    modules = ("torch",)

    def save(self, folder, step):
        import torch

        torch.save({"model": self.state(step), "step": step}, f"{folder}/step-{step}.pt")

    def load(self, path):
        import torch

        state = torch.load(path, weights_only=True)
        assert step_of(state["model"].values()) == state["step"]
        return state["step"]


class Dcp(Format):
    modules = ("torch", "torch.distributed.checkpoint")

    def save(self, folder, step):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(step), checkpoint_id=f"{folder}/step-{step}")

    def load(self, path):
        import torch.distributed.checkpoint as dcp

        state = self.state(0)
        dcp.load(state, checkpoint_id=path)
        return step_of(state.values())


class Dcp2(Dcp):
    """Each tensor is cut in two, one half on each rank."""

    ranks = 2
    modules = Dcp.modules + ("torch.distributed.tensor",)

    def state(self, step):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        return {name: distribute_tensor(one, mesh, [Shard(0)], src_data_rank=None) for name, one in super().state(step).items()}

    def load(self, path):
        import torch.distributed.checkpoint as dcp

        state = self.state(0)
        dcp.load(state, checkpoint_id=path)
        return step_of(one.full_tensor() for one in state.values())


class Safetensors(Format):
    pattern = r"step-(\d+)\.safetensors"
    modules = ("torch", "safetensors.torch")

    def save(self, folder, step):
        import safetensors.torch

        safetensors.torch.save_file(self.state(step), f"{folder}/step-{step}.safetensors")

    def load(self, path):
        import safetensors.torch

        return step_of(safetensors.torch.load_file(path).values())


class Sharded(Format):
    """As `save_pretrained` of transformers writes: the shards, then the index."""

    modules = ("torch", "safetensors.torch", "huggingface_hub")

    def save(self, folder, step):
        import huggingface_hub

        path = f"{folder}/step-{step}"
        os.makedirs(path)
        huggingface_hub.save_torch_state_dict(self.state(step), path, max_shard_size="5MB")

    def load(self, path):
        import json

        import safetensors.torch

        with open(f"{path}/model.safetensors.index.json") as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
        state = {}
        for file in files:
            state.update(safetensors.torch.load_file(f"{path}/{file}"))
        return step_of(state.values())


class Fsdp(Format):
    """The weights of fully_shard, a half of each tensor on each rank, as torchtitan saves them."""

    ranks = 2
    modules = ("torch", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", *OPTIMIZER)

    def parts(self):
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model_class(torch.nn.Module)(), mesh=init_device_mesh("cpu", (2,)))
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def write(self, folder, rank):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        (model, optimizer), step = self.parts(), 0
        while True:
            step += 1
            optimizer.zero_grad()
            model()["loss"].backward()
            optimizer.step()
            weights, states = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": states}, checkpoint_id=f"{folder}/step-{step}")
            if rank == 0:
                rotate(self.candidates(folder))

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        model, optimizer = self.parts()
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return step_of(one.full_tensor() for one in model.layers)


class Accelerate(Format):
    # The numbers of this naming begin at 0, with weights of this step.
    first = 1
    below = "checkpoints"
    pattern = r"checkpoint_(\d+)"
    modules = ("torch", "accelerate", "accelerate.checkpointing", *OPTIMIZER)

    def prepared(self, folder):
        import torch
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration

        config = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=KEPT)
        accelerator = Accelerator(cpu=True, project_config=config)
        model = model_class(torch.nn.Module)()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return accelerator, *accelerator.prepare(model, optimizer, scheduler)

    def write(self, folder, rank):
        accelerator, model, optimizer, scheduler = self.prepared(folder)
        self.begin(accelerator, folder)
        while True:
            optimizer.zero_grad()
            accelerator.backward(model()["loss"])
            optimizer.step()
            scheduler.step()
            accelerator.save_state()

    def begin(self, accelerator, folder):
        pass

    def load(self, path):
        import torch

        accelerator, model, optimizer, _ = self.prepared("/nonexistent")
        accelerator.load_state(path)
        # What it loads without a word when it is missing or cut.
        torch.load(f"{path}/random_states_0.pkl", weights_only=False)
        return step_of(model.layers) - self.first


class Custom(Accelerate):
    """With objects of the program, which are written after all else."""

    first = 0

    def prepared(self, folder):
        import torch

        parts = super().prepared(folder)
        for _ in range(2):
            parts[0].register_for_checkpointing(torch.nn.Linear(NUMBERS, 16))
        return parts

    def begin(self, accelerator, folder):
        """Only an earlier checkpoint tells how many objects there are: the first one is written beside the others."""
        import tempfile

        accelerator.project_configuration.project_dir = beside = tempfile.mkdtemp(dir=os.path.dirname(folder))
        accelerator.save_state()
        os.rename(f"{beside}/{self.below}", f"{folder}/{self.below}")
        os.rmdir(beside)
        accelerator.project_configuration.project_dir = folder


class Trainer(Format):
    pattern = r"checkpoint-(\d+)"
    modules = ("torch", "transformers", "transformers.trainer", "transformers.modeling_utils", "accelerate", *OPTIMIZER)

    def trainer(self, folder, callbacks):
        import torch
        import transformers

        class Config(transformers.PretrainedConfig):
            model_type = "tiny"

        Model = model_class(transformers.PreTrainedModel)
        Model.config_class = Config

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1_000_000

            def __getitem__(self, number):
                return {"x": number}

        arguments = transformers.TrainingArguments(
            output_dir=folder, save_steps=1, save_total_limit=KEPT, max_steps=1_000_000, per_device_train_batch_size=1,
            use_cpu=True, report_to=[], logging_strategy="no", disable_tqdm=True, max_grad_norm=0,
            remove_unused_columns=False, dataloader_num_workers=0)
        model = Model(Config())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return transformers.Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=callbacks,
                                    optimizers=(optimizer, scheduler))

    def write(self, folder, rank):
        self.trainer(folder, []).train()

    def load(self, path):
        import transformers

        class Loaded(Exception):
            pass

        class Look(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, model=None, **_):
                raise Loaded(state.global_step, step_of(model.layers))

        try:
            self.trainer("/nonexistent", [Look()]).train(resume_from_checkpoint=path)
        except Loaded as loaded:
            step, of_weights = loaded.args
            assert step == of_weights, f"weights of step {of_weights} with the state of {step}"
            return step
        raise ValueError("it did not begin")


class Trainer2(Trainer):
    """Data-parallel: rank 0 writes all but the random states of rank 1."""

    ranks = 2


class Lightning(Format):
    pattern = r"epoch=0-step=(\d+)\.ckpt"
    modules = ("torch", "lightning.pytorch", *OPTIMIZER)

    def parts(self):
        import torch
        from lightning.pytorch import LightningModule

        class Model(model_class(LightningModule)):
            def training_step(self, batch, _):
                return self()["loss"]

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=1.0)

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1_000_000

            def __getitem__(self, number):
                return number

        return Model(), torch.utils.data.DataLoader(Data())

    def trainer(self, folder, callbacks):
        from lightning.pytorch import Trainer

        # Where its ranks are told by their environment, as torchrun does.
        os.environ["TORCHELASTIC_RUN_ID"] = "writers"
        return Trainer(default_root_dir=folder, accelerator="cpu", devices=self.ranks, max_steps=-1, max_epochs=1, logger=False,
                       strategy="ddp" if self.ranks > 1 else "auto", callbacks=callbacks, enable_progress_bar=False,
                       enable_model_summary=False)

    def write(self, folder, rank):
        from lightning.pytorch.callbacks import ModelCheckpoint

        saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_top_k=KEPT, monitor="step", mode="max",
                                save_last="link")
        model, data = self.parts()
        self.trainer(folder, [saves]).fit(model, data)

    def load(self, path):
        from lightning.pytorch import Callback

        class Loaded(Exception):
            pass

        class Look(Callback):
            def on_train_batch_start(self, trainer, module, *_):
                raise Loaded(trainer.global_step, step_of(module.layers))

        import tempfile

        model, data = self.parts()
        try:
            self.trainer(tempfile.gettempdir(), [Look()]).fit(model, data, ckpt_path=path)
        except Loaded as loaded:
            step, of_weights = loaded.args
            assert step == of_weights, f"weights of step {of_weights} with the state of {step}"
            return step
        raise ValueError("it did not begin")


class Lightning2(Lightning):
    """Data-parallel: rank 0 writes."""

    ranks = 2


class Zero1(Format):
    ranks = 2
    stage = 1
    pattern = r"global_step(\d+)"
    modules = ("torch", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer", *OPTIMIZER)

    def __init__(self):
        super().__init__()
        import deepspeed

        # It is compiled for minutes, and only makes reductions faster.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def engine(self):
        import deepspeed
        import torch

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": self.stage},
                  "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 0.0}
        model = model_class(torch.nn.Module)()
        engine, *_ = deepspeed.initialize(model=model, config=config,
                                          optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
        return engine

    def write(self, folder, rank):
        engine = self.engine()
        while True:
            engine.backward(engine()["loss"])
            engine.step()
            engine.save_checkpoint(folder)
            if rank == 0:
                rotate(self.candidates(folder))

    def load(self, path):
        import deepspeed

        engine = self.engine()
        folder, tag = os.path.split(path)
        found, _ = engine.load_checkpoint(folder, tag)
        assert found, "nothing was loaded"
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=self.stage == 3):
            step = step_of(engine.module.layers)
        assert step == engine.global_steps, f"weights of step {step} with the state of {engine.global_steps}"
        # The partitions of the optimizer are as old as the weights.
        engine.backward(engine()["loss"])
        engine.step()
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=self.stage == 3):
            assert step_of(engine.module.layers) == step + 1, "the optimizer is of another step"
        return step


class Zero2(Zero1):
    stage = 2


class Zero3(Zero1):
    stage = 3


class Megatron(Format):
    """As megatron.training writes, by megatron-core: the folder of an iteration, then the tracker."""

    ranks = 2
    pattern = r"iter_(\d+)"
    modules = ("torch", "megatron.core.dist_checkpointing", "megatron.core.dist_checkpointing.strategies.torch")

    def __init__(self):
        super().__init__()
        import torch

        # It asks for a GPU, for flags that its ranks reduce and for the copies that it waits for.
        torch.cuda.synchronize = lambda *_: None
        torch.cuda.current_device = lambda: "cpu"
        tensor = torch.tensor
        torch.tensor = lambda *args, **kwargs: tensor(*args, **{**kwargs, "device": "cpu"})

    def sharded(self, step):
        import torch
        import torch.distributed as dist
        from megatron.core.dist_checkpointing import ShardedTensor

        rank = dist.get_rank()
        half = NUMBERS // 2
        cut = lambda name: ShardedTensor.from_rank_offsets(name, torch.full((half,), -float(step)), (0, rank, 2))
        state = {f"layer.{number}": cut(f"layer.{number}") for number in range(SIZE)}
        return {"model": state, "iteration": step}

    def save(self, folder, step):
        import torch.distributed as dist
        from megatron.core import dist_checkpointing

        path = f"{folder}/iter_{step:07}"
        if dist.get_rank() == 0:
            os.makedirs(path)
        dist.barrier()
        dist_checkpointing.save(self.sharded(step), path)
        if dist.get_rank() == 0:
            with open(f"{folder}/latest_checkpointed_iteration.txt", "w") as file:
                file.write(str(step))

    def load(self, path):
        import torch
        import torch.distributed as dist
        from megatron.core import dist_checkpointing

        state = dist_checkpointing.load(self.sharded(0), path)
        halves = [torch.cat([one, one]) for one in state["model"].values()]
        step = step_of(halves)
        assert step == state["iteration"], f"weights of step {step} with the state of {state['iteration']}"
        return step


FORMATS = {
    "torch": Torch, "dcp": Dcp, "dcp2": Dcp2, "fsdp": Fsdp, "safetensors": Safetensors, "sharded": Sharded,
    "accelerate": Accelerate, "custom": Custom, "trainer": Trainer, "trainer2": Trainer2, "lightning": Lightning,
    "lightning2": Lightning2, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3, "megatron": Megatron,
}
