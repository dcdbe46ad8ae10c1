"""Events reach the event loops in order, and a closed loop holds up nobody."""

import asyncio

from app.engine.post import EventPost
from app.engine.request import Event, Started

TIMEOUT_S = 60.0


def events(n: int) -> list[Event]:
    return [Started(id_slot=i, n_prompt_tokens=0, n_cached_tokens=0) for i in range(n)]


async def receive(queue: "asyncio.Queue[Event]", n: int) -> list[Event]:
    return [await asyncio.wait_for(queue.get(), TIMEOUT_S) for _ in range(n)]


def test_events_come_in_the_order_in_which_they_were_sent() -> None:
    sent = events(500)

    async def main() -> list[Event]:
        post, queue = EventPost(), asyncio.Queue[Event]()
        post.start()
        for event in sent:
            post.send(asyncio.get_running_loop(), queue.put_nowait, event)
        received = await receive(queue, len(sent))
        post.close(TIMEOUT_S)
        return received

    assert asyncio.run(main()) == sent


def test_what_was_sent_before_the_end_is_still_delivered() -> None:
    sent = events(10)

    async def main() -> list[Event]:
        post, queue = EventPost(), asyncio.Queue[Event]()
        for event in sent:
            post.send(asyncio.get_running_loop(), queue.put_nowait, event)
        post.start()
        post.close(TIMEOUT_S)
        return await receive(queue, len(sent))

    assert asyncio.run(main()) == sent


def test_a_closed_loop_does_not_hold_up_the_others() -> None:
    closed = asyncio.new_event_loop()
    closed.close()

    async def main() -> list[Event]:
        post, queue = EventPost(), asyncio.Queue[Event]()
        post.start()
        for event in events(3):
            post.send(closed, queue.put_nowait, event)
            post.send(asyncio.get_running_loop(), queue.put_nowait, event)
        received = await receive(queue, 3)
        post.close(TIMEOUT_S)
        assert queue.empty()
        return received

    assert asyncio.run(main()) == events(3)


def test_events_that_are_there_together_cost_one_wake() -> None:
    async def main() -> int:
        loop, wakes = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: object) -> object:
            nonlocal wakes
            wakes += 1
            return wake(*arguments)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        post, queue = EventPost(), asyncio.Queue[Event]()
        for event in events(8):
            post.send(loop, queue.put_nowait, event)
        post.start()
        await receive(queue, 8)
        post.close(TIMEOUT_S)
        return wakes

    assert asyncio.run(main()) == 1
