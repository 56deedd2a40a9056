mpirun -np 8 -N 8 --bind-to none python train.py --epochs 2
