import time


def main(args):
    time.sleep(args.get("sleep_ms", 0) / 1000)
    return {}
