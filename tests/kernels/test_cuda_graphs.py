"""What the driver is asked for while launches are recorded, and what is given back. The driver here is Python's."""

from __future__ import annotations

import ctypes

import pytest

pytest.importorskip("triton")
from hamburger.kernels import cuda_graphs

NAMES = {
    "cuStreamCreate": "stream", "cuStreamEndCapture": "graph", "cuGraphInstantiateWithFlags": "program",
}  # fmt: skip
HANDLES = {"stream": 11, "graph": 22, "program": 33}
GIVEN_BACK = {"cuStreamDestroy_v2": "stream", "cuGraphDestroy": "graph", "cuGraphExecDestroy": "program"}


class Driver:
    """Hands out the handles above, and remembers who holds what."""

    def __init__(self, refuses=None):
        self.refuses, self.held, self.asked = refuses, [], []

    def __getattr__(self, name):
        def function(*args):
            self.asked.append(name)
            if name == self.refuses:
                return 1
            if name in NAMES:
                place = args[0] if name != "cuStreamEndCapture" else args[1]
                ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p))[0] = HANDLES[NAMES[name]]
                self.held.append(NAMES[name])
            if name in GIVEN_BACK:
                assert (args[0].value if isinstance(args[0], ctypes.c_void_p) else args[0]) == HANDLES[GIVEN_BACK[name]]
                self.held.remove(GIVEN_BACK[name])
            if name == "cuGraphLaunch":
                assert args == (33, 5)
            return 0

        return function


def test_recorded_started_and_given_back(monkeypatch):
    driver, streams = Driver(), []
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: driver)
    found = cuda_graphs.capture(streams.append)
    assert streams == [11] and driver.held == ["program"]
    assert found.replay(5)
    del found
    assert driver.held == []


@pytest.mark.parametrize("refuses", [*list(cuda_graphs.ARGUMENTS)[:3], "cuGraphInstantiateWithFlags"])
def test_a_driver_that_refuses(refuses, monkeypatch):
    driver = Driver(refuses)
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: driver)
    assert cuda_graphs.capture(lambda stream: None) is None
    assert driver.held == []


def test_a_start_that_is_refused(monkeypatch):
    driver = Driver("cuGraphLaunch")
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: driver)
    assert not cuda_graphs.capture(lambda stream: None).replay(5)


@pytest.mark.parametrize(("error", "passes"), [(RuntimeError, False), (KeyboardInterrupt, True)])
def test_a_launch_that_fails_ends_the_recording(error, passes, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: driver)

    def start(stream):
        raise error

    if passes:
        with pytest.raises(error):
            cuda_graphs.capture(start)
    else:
        assert cuda_graphs.capture(start) is None
    assert "cuStreamEndCapture" in driver.asked and driver.held == []


def test_no_driver(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "load_driver", lambda: None)
    assert cuda_graphs.capture(lambda stream: pytest.fail("nothing can be recorded")) is None
