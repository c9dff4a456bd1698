"""Clients of Redis and frameworks for Python, unmodified, on a cluster whose names lie in many regions."""

import argparse

import cache_checks
import django_checks
import glide_checks
import kill_phase
import program_checks
import redis_py
import web_checks
from results import Cluster

MODULES = [program_checks, redis_py, glide_checks, django_checks, web_checks, cache_checks]
CHECKS = [check for module in MODULES for check in module.CHECKS]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True, help="HOST:PORT,HOST:PORT")
    parser.add_argument("--phase", required=True, choices=["check", "kill"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", help="name of a library")
    options = parser.parse_args()
    cluster = Cluster(options.nodes)
    if options.phase == "kill":
        kill_phase.run(cluster, options.seconds, options.only)
        return
    for check in CHECKS:
        if options.only in (None, check.client):
            check.report(cluster)


main()
