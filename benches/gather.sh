#!/bin/sh
# Gathers by ordinary commands what `check` reads, into files of the working directory:
# addresses, routes, disks, limits, cgroup, devices, and whether python starts.
ip addr > addresses 2>/dev/null || true
ip route > routes 2>/dev/null || true
df -k > disks
df -i > inodes
df -k /dev/shm > shm 2>/dev/null || true
ulimit -a > limits
cat /proc/meminfo /proc/self/status /etc/hosts /etc/resolv.conf > node 2>/dev/null || true
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max > cgroup 2>/dev/null || true
ls /dev/nvidia* /sys/class/infiniband > devices 2>/dev/null || true
python3 -c pass
