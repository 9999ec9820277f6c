"""Makes the small traces beside this file, in the two forms in which Microsoft published traces of
Azure Functions in 2019 and 2021.

    python3 load/traces/make.py [DIR]

The calls are made up. Of twelve functions two are called all the time, four by the clock, and the
others seldom or in bursts.
"""
import csv
import hashlib
import os
import random
import sys

MINUTES = 1440
PERCENTILES = (0, 1, 25, 50, 75, 99, 100)


def name(*of):
    return hashlib.sha256("/".join(map(str, of)).encode()).hexdigest()


def functions(r):
    """Yields for each function: its number, its trigger, how often it is called in each minute, and
    its usual duration in ms."""
    for n in range(12):
        usual = round(r.lognormvariate(4.5, 1))
        if n < 2:
            yield n, "http", [min(9, max(0, round(r.gauss(5, 2)))) for _ in range(MINUTES)], usual
        elif n < 6:
            every = (1, 5, 15, 60)[n - 2]
            yield n, "timer", [int(minute % every == 0) for minute in range(MINUTES)], usual
        elif n < 9:
            yield n, "queue", [int(r.random() < 0.02) for _ in range(MINUTES)], usual
        else:
            yield n, "event", [r.randint(10, 25) if minute % 240 == 2 * (n - 8) else 0 for minute in range(MINUTES)], usual


def table(directory, file, head, rows):
    with open(os.path.join(directory, file), "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def year2019(directory, all_functions, r):
    def ids(n):
        return [name("owner", n // 4), name("app", n // 2), name("function", n)]

    table(directory, "azure2019-calls.csv", ["HashOwner", "HashApp", "HashFunction", "Trigger", *range(1, MINUTES + 1)],
          [[*ids(n), trigger, *counts] for n, trigger, counts, _ in all_functions])
    rows = []
    for n, _, counts, usual in all_functions:
        spread = sorted(round(usual * r.lognormvariate(0, 0.5)) for _ in PERCENTILES)
        rows.append([*ids(n), usual, sum(counts), spread[0], spread[-1], *spread])
    table(directory, "azure2019-durations.csv", ["HashOwner", "HashApp", "HashFunction", "Average", "Count", "Minimum", "Maximum",
                                                 *(f"percentile_Average_{p}" for p in PERCENTILES)], rows)
    table(directory, "azure2019-memory.csv", ["HashOwner", "HashApp", "SampleCount", "AverageAllocatedMb"],
          [[name("owner", app // 2), name("app", app), 100, r.choice((100, 150, 220, 400))] for app in range(6)])


def year2021(directory, all_functions, r):
    """The first ten minutes of the same calls, one by one."""
    calls = []
    for n, _, counts, usual in all_functions:
        for minute in range(10):
            for _ in range(counts[minute]):
                duration = round(usual * r.lognormvariate(0, 0.5) / 1000, 3)
                calls.append([name("app", n // 2), name("function", n), round(60 * minute + 60 * r.random() + duration, 3), duration])
    table(directory, "azure2021.csv", ["app", "func", "end_timestamp", "duration"], sorted(calls, key=lambda call: call[2]))


if __name__ == "__main__":
    here = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    made = list(functions(random.Random(1)))
    year2019(here, made, random.Random(2))
    year2021(here, made, random.Random(3))
