"""The official `openai` client against a running server of the demo model.

    pip install openai
    engine serve -np 8 -c 2048 & python tests/all/serve/clients/openai_client.py http://127.0.0.1:8080

`tests/all/serve/clients.rs` runs it where the package is there. `--minutes 5` has the parallel part
last that long, `--aborts 500` aborts so many streams.
"""

import argparse
import json
import threading
import time
import urllib.request

import openai

parser = argparse.ArgumentParser()
parser.add_argument("address")
parser.add_argument("--minutes", type=float, default=0.05)
parser.add_argument("--aborts", type=int, default=20)
options = parser.parse_args()
client = openai.OpenAI(base_url=options.address + "/v1", api_key="none", max_retries=0, timeout=120)
STORY = [{"role": "user", "content": "Tell me a story."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Tom", "Ann"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "save", "description": "Saves a person.", "parameters": PERSON}}


def greedy(**fields):
    return client.chat.completions.create(
        model="any", messages=STORY, temperature=0, max_tokens=24, extra_body={"ignore_eos": True}, **fields
    )


def metric(name):
    with urllib.request.urlopen(options.address + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def chat_and_streaming():
    answer = greedy()
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 24
    chunks = list(greedy(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content, text
    assert chunks[-1].usage.completion_tokens == 24
    probabilities = greedy(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(probabilities) == 24 and len(probabilities[0].top_logprobs) == 2
    assert client.models.list().data[0].object == "model"


def texts():
    answer = client.completions.create(model="any", prompt=["Once", "Twice"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]


def schemas():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for stream in (False, True):
        answer = client.chat.completions.create(
            model="any", messages=STORY, response_format=form, temperature=1.5, max_tokens=200, stream=stream
        )
        if stream:
            text = "".join(c.choices[0].delta.content or "" for c in answer)
        else:
            text = answer.choices[0].message.content
        person = json.loads(text)
        assert person["name"] in ("Tom", "Ann") and 1 <= person["age"] <= 99, text


def tools():
    def ask(messages, **fields):
        return client.chat.completions.create(
            model="any", messages=messages, tools=[TOOL], parallel_tool_calls=False, max_tokens=200, **fields
        )

    named = {"type": "function", "function": {"name": "save"}}
    for choice in ("required", named):
        answer = ask(STORY, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls", answer
        call = answer.message.tool_calls[0]
        assert call.function.name == "save" and json.loads(call.function.arguments)["age"] < 100
    # What came of the call goes back.
    done = {"role": "tool", "tool_call_id": call.id, "content": "saved"}
    ask(STORY + [answer.message, done], tool_choice="none", temperature=0)
    pieces = [
        call
        for chunk in ask(STORY, tool_choice="required", stream=True)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert pieces[0].id and json.loads("".join(piece.function.arguments for piece in pieces))


def reasoning():
    template = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = client.chat.completions.create(model="any", messages=STORY, max_tokens=8, extra_body=template)
    assert answer.choices[0].message.role == "assistant"


def responses():
    answer = client.responses.create(model="any", input="Tell me a story.", max_output_tokens=24, temperature=0)
    assert answer.usage.output_tokens <= 24 and answer.status in ("completed", "incomplete")
    text = ""
    with client.responses.stream(model="any", input="Tell me a story.", max_output_tokens=24, temperature=0) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == answer.output_text, (text, answer.output_text)
    tool = {"type": "function", **TOOL["function"], "strict": True}
    called = client.responses.create(model="any", input="Save Tom.", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    assert json.loads(called.output[0].arguments)["name"] in ("Tom", "Ann")


def errors():
    def fails(kind, **fields):
        try:
            client.chat.completions.create(**{"model": "any", "messages": STORY, **fields})
        except kind as error:
            return error
        raise AssertionError(f"{fields} did not fail")

    assert fails(openai.BadRequestError, top_p=7).param == "top_p"
    assert fails(openai.BadRequestError, messages=[]).param == "messages"
    long = [{"role": "user", "content": "word " * 100_000}]
    assert fails(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "sting"}}}
    assert fails(openai.BadRequestError, response_format=form).param == "response_format"


def parallel():
    expected = greedy().choices[0].message.content
    until = time.monotonic() + options.minutes * 60
    wrong, answers = [], []

    def loop():
        while time.monotonic() < until and not wrong:
            found = greedy().choices[0].message.content
            answers.append(found)
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=loop) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong, (expected, wrong)
    print(f"8 clients, {len(answers)} answers, all equal")


def aborts():
    memory = []
    for i in range(options.aborts + 8):
        stream = client.completions.create(
            model="any", prompt="Once", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
        # The first ones make the buffers that later ones use.
        if i == 7:
            memory.append(settled())
    memory.append(settled())
    assert memory[0] == memory[1], memory
    print(f"{options.aborts} streams aborted, device memory {memory[1]:.0f} bytes before and after")


def settled():
    while metric("llamacpp:requests_processing"):
        time.sleep(0.02)
    return metric("engine:device_memory_bytes")


for part in (chat_and_streaming, texts, schemas, tools, reasoning, responses, errors, parallel, aborts):
    start = time.monotonic()
    part()
    print(f"{part.__name__}: ok, {time.monotonic() - start:.1f} s", flush=True)
