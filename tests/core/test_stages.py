"""The times of stages are exclusive, and nothing is measured outside `measure_stages`."""

import threading
import time

from sottovoce.core.stages import StageTimes, measure_stages, stage, staged


def test_a_stage_inside_another_is_not_counted_twice() -> None:
    with measure_stages() as times:
        begun = time.perf_counter()
        with stage("outer"):
            time.sleep(0.01)
            with stage("inner"):
                time.sleep(0.02)
        whole = time.perf_counter() - begun
    assert times.seconds["outer"] >= 0.01
    assert times.seconds["inner"] >= 0.02
    assert sum(times.seconds.values()) <= whole


def test_items_are_counted_while_they_are_made_and_not_while_they_are_used() -> None:
    with measure_stages() as times:
        for _ in staged("make", range(3)):
            time.sleep(0.01)
    assert times.seconds["make"] < 0.01


def test_an_error_ends_its_stage() -> None:
    with measure_stages() as times:
        try:
            with stage("fails"):
                raise ValueError
        except ValueError:
            pass
        with stage("next"):
            pass
    assert set(times.seconds) == {"fails", "next"}


def test_outside_of_a_measurement_stages_leave_no_trace() -> None:
    with stage("alone"):
        pass
    with measure_stages() as times:
        pass
    assert times.seconds == {}


def test_what_other_threads_do_belongs_to_the_stage_that_waits_for_them() -> None:
    def work() -> None:
        with stage("inside"):
            pass

    with measure_stages() as times, stage("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert set(times.seconds) == {"outer"}


def test_a_profile_adds_up_to_the_whole_with_the_longest_stage_first() -> None:
    profile = StageTimes(seconds={"short": 1.0, "long": 2.0}).profile(4.0)
    assert list(profile) == ["long", "short", "other"]
    assert profile["long"] == {"seconds": 2.0, "share": 0.5}
    assert profile["other"] == {"seconds": 1.0, "share": 0.25}
