// The server's routes that the page uses.

/** An answer other than 200, with the server's sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, key, options = {}) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(response.status, body?.error?.message ?? `The server answered ${response.status}.`);
}

export const props = async (key) => (await ask("props", key)).json();

/** The conversations that the server keeps. */
export const conversations = (key) => {
  const send = (method, id, body) =>
    ask(`conversations/${id}`, key, { method, ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }) });
  return {
    list: async () => (await (await ask("conversations", key)).json()).conversations,
    load: async (id) => (await send("GET", id)).json(),
    save: (session) => send("PUT", session.id, session),
    remove: (id) => send("DELETE", id),
  };
};

/** Streams an answer to `body`; calls `take` with every chunk. */
export async function chat(body, key, signal, take) {
  const response = await ask("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, return_progress: true }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused(0, "The server has closed the connection.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(500, chunk.error.message);
      take(chunk);
    }
  }
}
