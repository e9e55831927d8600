"""Asks the gateway with the official libraries; prints what they understood, one line of JSON per call.

Input: a line of JSON with `url` and `token`.
"""

import base64
import json
import sys

import anthropic
import openai
from google import genai
from google.genai import types

settings = json.loads(sys.stdin.readline())
url, token = settings["url"], settings["token"]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def report(name, **found):
    print(json.dumps({"call": name, **found}), flush=True)


def chat():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
    say = lambda text: [{"role": "user", "content": text}]
    tools = [{"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}]
    whole = client.chat.completions.create(model="m", messages=say("say hello"))
    report("chat", text=whole.choices[0].message.content, tokens=whole.usage.completion_tokens)
    stream = client.chat.completions.create(model="m", messages=say("say hello"), stream=True)
    report("chat stream", text="".join(c.choices[0].delta.content or "" for c in stream if c.choices))
    called = client.chat.completions.create(model="m", messages=say("use the tool"), tools=tools)
    call = called.choices[0].message.tool_calls[0]
    report("chat tool", tool=call.function.name, arguments=json.loads(call.function.arguments))
    with client.chat.completions.stream(model="m", messages=say("use the tool"), tools=tools) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    report("chat tool stream", tool=call.function.name, arguments=json.loads(call.function.arguments))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}}
    seen = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "say hello"}, image]}]
    )
    report("chat image", text=seen.choices[0].message.content)
    report("chat models", models=[model.id for model in client.models.list()])


def responses():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
    tools = [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}]
    whole = client.responses.create(model="m", input="say hello")
    report("responses", text=whole.output_text, tokens=whole.usage.output_tokens)
    with client.responses.stream(model="m", input="say hello") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    report("responses stream", text=deltas, final=final.output_text)
    called = client.responses.create(model="m", input="use the tool", tools=tools)
    call = [item for item in called.output if item.type == "function_call"][0]
    report("responses tool", tool=call.name, arguments=json.loads(call.arguments))
    image = {"type": "input_image", "image_url": "data:image/png;base64," + base64.b64encode(PNG).decode()}
    content = [{"type": "input_text", "text": "say hello"}, image]
    seen = client.responses.create(model="m", input=[{"role": "user", "content": content}])
    report("responses image", text=seen.output_text)


def messages():
    client = anthropic.Anthropic(base_url=url, api_key=token, max_retries=0)
    say = lambda text: [{"role": "user", "content": text}]
    tools = [{"name": "shell", "description": "Runs a command.", "input_schema": SCHEMA}]
    ask = {"model": "m", "max_tokens": 100}
    whole = client.messages.create(messages=say("say hello"), **ask)
    report("messages", text=whole.content[0].text, tokens=whole.usage.output_tokens)
    with client.messages.stream(messages=say("say hello"), **ask) as stream:
        text = "".join(stream.text_stream)
        tokens = stream.get_final_message().usage.output_tokens
    report("messages stream", text=text, tokens=tokens)
    with client.messages.stream(messages=say("use the tool"), tools=tools, **ask) as stream:
        call = [block for block in stream.get_final_message().content if block.type == "tool_use"][0]
    report("messages tool stream", tool=call.name, arguments=call.input)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    content = [{"type": "text", "text": "say hello"}, {"type": "image", "source": source}]
    seen = client.messages.create(messages=[{"role": "user", "content": content}], **ask)
    report("messages image", text=seen.content[0].text)
    count = client.messages.count_tokens(model="m", messages=say("say hello"))
    report("messages count", counted=count.input_tokens > 0)
    report("messages models", models=[model.id for model in client.models.list()])


def gemini():
    client = genai.Client(api_key=token, http_options=types.HttpOptions(base_url=url))
    shell = types.FunctionDeclaration(name="shell", description="Runs a command.", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[shell])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    whole = client.models.generate_content(model="m", contents="say hello")
    report("gemini", text=whole.text, tokens=whole.usage_metadata.candidates_token_count)
    stream = client.models.generate_content_stream(model="m", contents="say hello")
    report("gemini stream", text="".join(chunk.text or "" for chunk in stream))
    called = client.models.generate_content(model="m", contents="use the tool", config=config)
    call = called.function_calls[0]
    report("gemini tool", tool=call.name, arguments=call.args)
    image = types.Part.from_bytes(data=PNG, mime_type="image/png")
    seen = client.models.generate_content(model="m", contents=["say hello", image])
    report("gemini image", text=seen.text)
    count = client.models.count_tokens(model="m", contents="say hello")
    report("gemini count", counted=count.total_tokens > 0)


def errors():
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "say hello"}])
    except openai.AuthenticationError as error:
        report("openai error", code=error.code)
    client = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    try:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "say hello"}])
    except anthropic.AuthenticationError as error:
        report("anthropic error", kind=error.body["error"]["type"])
    client = genai.Client(api_key="wrong", http_options=types.HttpOptions(base_url=url))
    try:
        client.models.generate_content(model="m", contents="say hello")
    except genai.errors.ClientError as error:
        report("gemini error", code=error.code, status=error.status)


for part in settings["parts"]:
    globals()[part]()
