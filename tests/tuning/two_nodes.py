"""A Ray cluster of two nodes on this machine, until the standard input ends.

Each node has one CPU. Prints one line of JSON: the cluster's address, and the process
of each node's raylet by the node's id, the head first.
"""

import json
import os
import sys

from ray.cluster_utils import Cluster


def main() -> None:
    settings = {"include_dashboard": False, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    nodes = [cluster.head_node, cluster.add_node(**settings)]
    raylets = {n.node_id: n.all_processes["raylet"][0].process.pid for n in nodes}
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    for node in nodes[::-1]:
        node.kill_all_processes(check_alive=False, allow_graceful=False)
    os._exit(0)  # what Ray does at the end waits for what is already gone


if __name__ == "__main__":
    main()
