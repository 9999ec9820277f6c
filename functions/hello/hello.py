def main(args):
    return {"greeting": "Hello, " + str(args.get("name", "stranger")) + "!"}
