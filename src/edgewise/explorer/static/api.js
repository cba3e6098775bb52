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

// The newest question wins: an older one that is still on its way is given up.
export function newest() {
  let current = null;
  return async (path, body) => {
    current?.abort();
    current = new AbortController();
    const mine = current;
    try {
      const answer = await json(path, body, mine.signal);
      return mine === current ? answer : null;
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    }
  };
}
