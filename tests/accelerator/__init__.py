"""A fake accelerator for tests: device type "fgpu", with streams, a clock of its own, and a process group like NCCL.

    import tests.accelerator.fgpu                       makes the device type known in this process
    autotune … --load tests.accelerator.nccl_transport  the same in a job's ranks, with the transport "fake-nccl"
    on_device_ranks(2, run)                             two ranks as threads, each with a device of its own (threads.py)

A tensor on fgpu wraps a CPU tensor (tensor.py); an operation is really computed, when it is launched, so results equal
the CPU's bit for bit. On the device's time line it runs on the current stream for as long as the device's speed says
(timeline.py, costs.py, devices.py), and waiting for it takes that long. `torch.get_device_module("fgpu")` has the names
of torch.cuda (device_module.py). Counted are the waits of the host (counts.py); raised are tensors of different devices
in one operation, streams that use the same memory in no order, and memory freed while another stream uses it (races.py).
Copies to pinned memory arrive when the host synchronises with them; until then it holds NaN (copies.py). The process
group is in nccl.py, with its queues in transfer.py.

## Autograd
torch's guard for backends written in Python knows one device and one stream: a backward pass on fgpu:1 ends in an
internal assertion of the engine. So the guard and the hooks are C++ (engine_hooks.cpp), built in three seconds with the
wheel's headers when first used. With them the engine does what it does with CUDA: one thread per device index runs the
backward pass, every node on the stream of its forward operation, with the engine's own events between nodes on
different streams and, at the end, from the streams of the leaves to the caller's current stream.

## Ranks as threads
Device and stream are per thread, so ranks can be threads of one process when each has a device index of its own
(threads.py): two ranks start in 0.1 s. A rank that fails closes nothing: its peers wait until their time limit, as with
NCCL. What a process has once is shared: the counters (read them by thread name), the switch of the race detection, the
random generator of the CPU, and `FGPU_*` variables by rank (use `devices.configure(index, ...)` instead).

## What does not hold
- Operations that change a tensor's shape in place (`t_()`, `resize_`, `set_`) are refused, as are sparse and quantized
  tensors, `torch.compile`, autocast and generators on the device: random numbers are drawn from the CPU's generator.
- Foreach optimizers must be asked for (`foreach=True`): torch takes them by default for plain tensors only.
- A pickled tensor is a CPU tensor afterwards. `Module.to` keeps the parameters' identity on the way to the device and
  makes new ones on the way back; it refuses parameters that are referenced weakly.
- An operation takes 0.1 ms of host time, some ten times that of a small CPU operation.
- Of two operations of one device that could run at once, the one launched first does not slow down.
- A stream that waits for a collective blocks the host at its next launch until the values are there (nccl.py).

## Why not torch's OpenReg
OpenReg, torch's own test device, is neither in the wheel nor in Debian (whose libtorch is 1.13), only in torch's
repository. It takes the same one dispatch key, so it cannot share a process with this one. Its guard and hooks are
built on the same headers as ours; it has no clock, no race detection and no NCCL, and its streams are threads.
"""
