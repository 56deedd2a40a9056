# The same ranks in a program that imports what a training with transformers imports.
import torch
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from first_reduce import main

if __name__ == "__main__":
    main()
