"""An agent on the `openai` package: it looks for a thing in a house, room by room.

It knows nothing of verl-hier. Its client finds the endpoint in OPENAI_BASE_URL and OPENAI_API_KEY.
"""

import os

from openai import OpenAI


def play(task: dict) -> str:
    """Returns the room that the policy names."""
    client = OpenAI()
    rooms = task["rooms"]
    question = f"{task['instruction']} ; say look or answer and one of {' '.join(rooms)}"
    messages = [{"role": "user", "content": question}]
    while True:
        answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        verb, _, room = said.content.partition(" ")
        if verb == "answer":
            return room
        seen = f"in {room} is {rooms[room]}" if verb == "look" and room in rooms else "there is no such room"
        messages.append({"role": "user", "content": seen})
