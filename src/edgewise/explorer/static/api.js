// Questions to the server; a refusal becomes an error whose message is a sentence.
export const API = "/api/1";

export async function ask(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(`${API}/${path}`, { ...options, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `edgewise explore` still running?");
  }
  if (response.ok) return response;
  const refusal = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  throw new Error(refusal.error);
}

export const json = async (path, body, signal) => (await ask(path, body, signal)).json();

// The newest question wins: an older one that is still on its way is given up, and all of them once `signal` says so.
export function newest(signal) {
  let current = null;
  signal?.addEventListener("abort", () => current?.abort());
  const question = async (path, body) => {
    current?.abort();
    current = new AbortController();
    const mine = current;
    if (signal?.aborted) return null;
    try {
      const answer = await json(path, body, mine.signal);
      return mine === current && !signal?.aborted ? answer : null;
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  };
  question.stop = () => current?.abort();
  return question;
}

// An answer in parts, as server-sent events: told(part) for each. Who aborts `signal` stops the computation.
export async function follow(path, body, signal, told) {
  const response = await ask(path, body, signal), reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const news = JSON.parse(part.slice("data: ".length));
      if (news.error) throw new Error(news.error);
      told(news);
    }
  }
}

// A file for the reader's own folder.
export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
