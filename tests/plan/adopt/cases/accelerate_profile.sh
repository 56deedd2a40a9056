accelerate launch --config_file configs/fsdp.yaml --num_processes 8 train.py --a "b c"
