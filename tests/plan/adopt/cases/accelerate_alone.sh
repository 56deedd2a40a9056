accelerate launch --multi_gpu --num_processes 4 --gpu_ids 0,1,2,3 -m package.run --config run.yaml
