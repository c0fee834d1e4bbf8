"""An argument that the script refuses: every rank ends with 2."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()  # here
