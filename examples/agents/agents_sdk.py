"""The same agent on the OpenAI Agents SDK (`pip install openai-agents`), where looking is a tool."""

import os

from agents import Agent, Runner, function_tool, set_tracing_disabled

# Nothing is sent to OpenAI.
set_tracing_disabled(True)


async def play(task: dict) -> str:
    """Returns the room that the policy names."""
    rooms = task["rooms"]

    @function_tool
    def look(room: str) -> str:
        """What is in a room."""
        return f"in {room} is {rooms[room]}" if room in rooms else "there is no such room"

    seeker = Agent(name="seeker", model=os.environ["OPENAI_MODEL"], tools=[look])
    question = f"{task['instruction']} ; say look or answer and one of {' '.join(rooms)}"
    done = await Runner.run(seeker, question, max_turns=20)
    return done.final_output.removeprefix("answer ")
