# Reports the collective of each thread of a rank, for a torch whose gloo keeps no flight record. A thread answers
# like the recorder, on a Unix socket beside that of the worker server, which such a version may lack: for each group
# the number of the last collective, and the arguments of the collectives under way. Nothing is done before a
# request; a rank that does not release the GIL does not answer.
import json
import os
import socket
import sys
import time
import _thread

_BACKLOG = 4
_MOST_WORKS = 64
# The head of a request is some 200 bytes.
_LARGEST_HEAD = 8192

# Functions of torch.distributed.distributed_c10d, the name of the collective, and the arguments that hold the input
# and the output.
_COLLECTIVES = {
    "all_reduce": ("all_reduce", "tensor", "tensor"),
    "all_reduce_coalesced": ("allreduce_coalesced", "tensors", "tensors"),
    "broadcast": ("broadcast", "tensor", "tensor"),
    "reduce": ("reduce", "tensor", "tensor"),
    "all_gather": ("all_gather", "tensor", "tensor_list"),
    "all_gather_into_tensor": ("_all_gather_base", "input_tensor", "output_tensor"),
    "gather": ("gather", "tensor", "gather_list"),
    "scatter": ("scatter", "scatter_list", "tensor"),
    "reduce_scatter": ("reduce_scatter", "input_list", "output"),
    "reduce_scatter_tensor": ("_reduce_scatter_base", "input", "output"),
    "all_to_all": ("all_to_all", "input_tensor_list", "output_tensor_list"),
    "all_to_all_single": ("all_to_all", "input", "output"),
    "barrier": ("barrier", None, None),
}
# Sends and receives have no number that both sides know, so their record would be wrong.
_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "_send_object", "recv_object_list")
# A call of one of these functions.
_UNKNOWN = object()


def serve(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_BACKLOG)
    # This thread is not made by threading: programs count and join threading's own threads.
    _thread.start_new_thread(_answer_all, (listener, _Calls()))


def _answer_all(listener, calls):
    while True:
        try:
            asker = listener.accept()[0]
        except Exception:
            return
        try:
            asker.settimeout(1)
            head = asker.recv(_LARGEST_HEAD)
            known = head.startswith(b"POST /handler/fr_trace_json")
            body = json.dumps(calls.record()).encode() if known else b""
            status = b"200 OK" if known else b"404 Not Found"
            asker.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except Exception:
            pass
        finally:
            asker.close()


class _Calls(object):
    def __init__(self):
        # By the group's name: its number, and the time when a request first saw that number.
        self.seen = {}
        self.asked = time.time_ns()

    def record(self):
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        world = c10d._world
        entries, config, status = [], {}, {}
        calls = {}
        stacks = list(_stacks())
        for frames in stacks:
            call = _call(frames, c10d)
            if call is _UNKNOWN:
                return _record()
            if call is not None:
                calls[world.pg_names.get(call[0])] = call[1:]
        if not calls:
            open_works = [found for frames in stacks for found in _works(frames)]
            used = [group for group in world.pg_map if group._get_sequence_number_for_group() > 0]
            # A work object does not show its group.
            if open_works and len(used) > 1:
                return _record()
            if open_works and used:
                calls[world.pg_names.get(used[0])] = open_works[-1]
        asked, self.asked = self.asked, time.time_ns()
        for at, group in enumerate(list(world.pg_map)):
            backend, name = world.pg_map[group][0], world.pg_names.get(group, "")
            ranks = sorted(world.pg_group_ranks.get(group, {}))
            if "gloo" not in str(backend):
                continue
            last = group._get_sequence_number_for_group()
            number, since = self.seen.get(name, (None, asked))
            if number != last:
                # The collective was entered after the last request.
                since = asked
            self.seen[name] = (last, since)
            call = calls.get(name)
            desc = "default_pg" if group is world.default_pg else getattr(group, "group_desc", "") or "undefined"
            config[str(at)] = {"name": name, "desc": desc, "ranks": str(ranks)}
            status[str(at)] = {"last_enqueued_collective": last, "last_started_collective": -1,
                               "last_completed_collective": last - (call is not None)}
            if last > 0:
                entries.append(_entry(len(entries), at, [name, desc], last, call, since, _limit(group)))
        return _record(config, status, entries)


def _record(config=(), status=(), entries=()):
    """Without a word, where nothing can be said for sure."""
    return {"version": "2.10", "pg_config": dict(config), "pg_status": dict(status), "entries": list(entries)}


def _entry(record, pg_id, group, number, call, since, limit):
    entry = {"record_id": record, "pg_id": pg_id, "process_group": group, "collective_seq_id": number, "p2p_seq_id": 0,
             "is_p2p": False, "state": "completed", "retired": True, "profiling_name": "gloo:done"}
    if call is not None:
        name, inputs, outputs, frames = call
        entry.update(state="scheduled", retired=False, profiling_name="gloo:" + name, frames=frames,
                     time_created_ns=since, timeout_ms=limit)
        for key, tensors in (("input", inputs), ("output", outputs)):
            entry[key + "_sizes"] = [list(tensor.shape) for tensor in tensors]
            entry[key + "_dtypes"] = [_dtype(tensor) for tensor in tensors]
    return entry


def _stacks():
    own = _thread.get_ident()
    for thread, frame in sys._current_frames().items():
        if thread != own:
            frames = []
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            yield frames


def _call(frames, c10d):
    """The innermost call of a collective: the group, its name, its tensors and its lines."""
    for frame in frames:
        name = frame.f_code.co_name
        if frame.f_code.co_filename.endswith("torch/autograd/graph.py") and name == "_engine_run_backward":
            # DistributedDataParallel reduces in the backward pass, out of sight.
            return (c10d._world.default_pg, "all_reduce", [], [], _lines(frames))
        if frame.f_globals is not c10d.__dict__:
            continue
        if name in _PAIRS:
            return _UNKNOWN
        if name in _COLLECTIVES:
            called, given, taken = _COLLECTIVES[name]
            values = frame.f_locals
            group = values.get("group")
            group = c10d._world.default_pg if group is None else group
            return (group, called, _tensors(values.get(given)), _tensors(values.get(taken)), _lines(frames))
    return None


def _works(frames):
    """Collectives that were begun and are not done, as far as variables hold them. Which ones they are is not said."""
    from torch._C._distributed_c10d import Work

    for frame in frames:
        for value in list(frame.f_locals.values()):
            for one in list(value)[:_MOST_WORKS] if isinstance(value, (list, tuple)) else [value]:
                if isinstance(one, Work) and not one.is_completed():
                    yield ("collective", [], [], _lines(frames))


def _tensors(value):
    if value is None:
        return []
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if hasattr(one, "shape")]


def _lines(frames):
    return [{"name": frame.f_code.co_name, "filename": frame.f_code.co_filename, "line": frame.f_lineno}
            for frame in frames]


def _dtype(tensor):
    # Names as in the recorder: Float, Long, BFloat16.
    return tensor.type().rsplit(".", 1)[-1].replace("Tensor", "")


def _limit(group):
    try:
        import torch

        return int(group._get_backend(torch.device("cpu")).options._timeout.total_seconds() * 1000)
    except Exception:
        return None
