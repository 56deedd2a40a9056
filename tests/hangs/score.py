"""What is right of a report, and how often."""

import dataclasses
import statistics

from job import PATIENCE

CULPRITS, LINES = 0.95, 0.90
# Seconds before the threshold at which a report is an alarm too early: progress may have ended a little before a
# rank declared its hang.
EARLY = 2


@dataclasses.dataclass
class Mark:
    """None where there is nothing to be judged: a stopped link has no line."""

    culprit: bool
    line: bool | None
    kind: bool
    in_time: bool
    why: str


def mark(result, shift=0):
    """Judges a report; `shift` takes other ranks for the declared ones, which must be found wrong."""
    hang = result.hang
    if not hang:
        return Mark(False, False if wants_line(result) else None, False, False, "not reported")
    named = hang.get("culprits") or []
    declared = {(rank + shift) % result.world if rank >= 0 else rank: one for rank, one in result.declared.items()}
    may = {rank for one in declared.values() for rank in one["may"]}
    by_rank = {entry.get("rank"): entry for entry in named}
    if -1 in declared:
        node = declared[-1]["node"]
        links = [entry for entry in named if entry.get("kind") == "link"
                 and (node is None or entry.get("node") in (None, node))]
        culprit = bool(links) and not shift
        right = links
    else:
        must = set(declared) if not may else set(declared) - may
        culprit = bool(named) and set(by_rank) <= set(declared) | may and must <= set(by_rank) \
            and bool(set(by_rank) & set(declared))
        right = [entry for rank, entry in by_rank.items() if rank in declared]
    kinds = {kind for one in declared.values() for kind in one["kinds"]}
    kind = bool(right) and all(entry.get("kind") in kinds for entry in right)
    line = None
    if wants_line(result):
        line = bool(right) and all(short(entry.get("frame")) in declared[entry["rank"]]["lines"] for entry in right)
    late = result.at - result.due
    in_time = late <= PATIENCE and late >= -EARLY
    said = "; ".join(f"rank {entry.get('rank')} {entry.get('kind')} at {short(entry.get('frame'))}" for entry in named)
    meant = "; ".join(f"rank {rank} {'|'.join(one['kinds'])} at {' '.join(one['lines'])}" for rank, one in declared.items())
    return Mark(culprit, line, kind, in_time, f"said: {said or 'nobody'}; is: {meant}; {late:+.1f} s")


def wants_line(result):
    return any(one["lines"] for one in result.declared.values())


def short(frame):
    return frame.rsplit("/", 1)[-1] if frame else None


def share(values):
    """Of those that are judged; none of them counts as right."""
    judged = [value for value in values if value is not None]
    return sum(judged) / len(judged) if judged else 1.0


def table(results):
    """Prints a line for each kind, and gives why the whole is not good enough."""
    names = list(dict.fromkeys(result.kind.name for result in results))
    hung = [result for result in results if not result.kind.lives]
    marks = {id(result): mark(result) for result in hung}
    print(f"\n{'hangs':18} runs  culprit  line  kind  in time  median after the threshold")
    for name in names:
        of = [result for result in hung if result.kind.name == name]
        if of:
            got = [marks[id(result)] for result in of]
            after = [result.at - result.due for result in of if result.hang]
            cells = [share(getattr(one, field) for one in got) for field in ("culprit", "line", "kind", "in_time")]
            lines = "   –" if all(one.line is None for one in got) else f"{cells[1]:4.0%}"
            print(f"{name:18} {len(of):4}  {cells[0]:7.0%}  {lines}  {cells[2]:4.0%}  {cells[3]:7.0%}  "
                  f"{f'{statistics.median(after):.1f} s' if after else '–'}")
    print(f"\n{'living runs':18} runs  called hung")
    for name in names:
        of = [result for result in results if result.kind.lives and result.kind.name == name]
        if of:
            print(f"{name:18} {len(of):4}  {sum(bool(result.hang) for result in of):11}")
    for result in results:
        if result.broken:
            print(f"\nbroken: {result.label}: {result.broken}\n    {result.folder}")
        elif result.kind.lives and result.hang:
            print(f"\nlives: {result.label}: {result.hang}\n    {result.folder}")
        elif not result.kind.lives:
            one = marks[id(result)]
            if not (one.culprit and one.line in (None, True) and one.kind and one.in_time):
                print(f"\nwrong: {result.label}: {one.why}\n    {result.folder}")
    return not_enough(results)


def not_enough(results, shift=0):
    """Why the results do not pass; empty if they do."""
    marks = [mark(result, shift) for result in results if not result.kind.lives]
    called = [result for result in results if result.kind.lives and result.hang]
    broken = [result for result in results if result.broken and not result.hang]
    why = []
    culprits, lines = share([one.culprit for one in marks]), share([one.line for one in marks])
    if culprits < CULPRITS:
        why.append(f"the culprit is right in {culprits:.1%}, not in {CULPRITS:.0%}")
    if lines < LINES:
        why.append(f"the line is right in {lines:.1%}, not in {LINES:.0%}")
    late = sum(not one.in_time for one in marks)
    if late > (1 - CULPRITS) * len(marks):
        why.append(f"{late} of {len(marks)} are not reported between the threshold and {PATIENCE} s after it")
    if called:
        why.append(f"{len(called)} living runs are called hung")
    if broken:
        why.append(f"{len(broken)} runs are broken")
    return why
