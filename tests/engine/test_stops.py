import os
import selectors
import signal

from harness.stops import Stops


def test_a_signal_wakes_the_selector_and_is_counted() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with Stops() as stops, selectors.DefaultSelector() as selector:
        selector.register(stops, selectors.EVENT_READ)
        assert selector.select(0) == []
        os.kill(os.getpid(), signal.SIGHUP)
        assert selector.select(1)
        stops.drain()
        assert selector.select(0) == []
        os.kill(os.getpid(), signal.SIGINT)
        assert (stops.count, stops.first, stops.exit_code) == (2, signal.SIGHUP, 143)
    assert signal.getsignal(signal.SIGHUP) == before


def test_ctrl_c_first_means_exit_code_130() -> None:
    with Stops() as stops:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stops.exit_code == 130
