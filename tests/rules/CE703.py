import torch

OPTIONS = {"*": {"as_written": True}}


# A user's backend does not know an operator and raises.
def strict_backend(graph, example_inputs):
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target.__name__ != "linear":
            raise NotImplementedError(f"no kernel for {node.target.__name__}")  # run: CE703
    return graph.forward


def bad():
    def model(x):
        return torch.softmax(x * 2, -1)

    return torch.compile(model, backend=strict_backend), [(torch.randn(2, 4),)]


# A backend that returns None instead of a callable.
def forgetful_backend(graph, example_inputs):
    graph.graph.eliminate_dead_code()
    graph.recompile()


def bad_2():
    def fn(x):  # run: CE703
        return x.sin() + 1

    return torch.compile(fn, backend=forgetful_backend), [(torch.randn(4),)]


# A user's backend that works.
def counting_backend(graph, example_inputs):
    graph.meta["nodes"] = len(graph.graph.nodes)
    return graph.forward


def good():
    return torch.compile(lambda x: x.sin() + 1, backend=counting_backend), [(torch.randn(2, 4),)] * 3
