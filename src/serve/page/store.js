// What the browser keeps: settings and conversations. All that touches storage is here.

const SETTINGS = "engine.settings";
const SESSION = "engine.session.";

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const settings = {
  load: () => read(SETTINGS, {}),
  save: (values) => localStorage.setItem(SETTINGS, JSON.stringify(values)),
};

/** A conversation: `{id, title, changed, messages: [{role, content, reasoning?, facts?}]}`. */
export const sessions = {
  /** Where the server keeps them, if it does. Those of this browser move there when they change. */
  server: null,

  create: () => ({ id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "", changed: Date.now(), messages: [] }),
  load: async (id) => read(SESSION + id, null) ?? (await sessions.server?.load(id)),

  async remove(id) {
    localStorage.removeItem(SESSION + id);
    await sessions.server?.remove(id);
  },

  /** Throws if the browser has no room left, or the server does not keep it. */
  async save(session) {
    session.changed = Date.now();
    if (!sessions.server) return localStorage.setItem(SESSION + session.id, JSON.stringify(session));
    await sessions.server.save(session);
    localStorage.removeItem(SESSION + session.id);
  },

  /** Id, title and time of all, the newest first. */
  async list() {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(SESSION));
    const own = names.map((name) => read(name, null)).filter((session) => Array.isArray(session?.messages));
    const kept = (await sessions.server?.list()) ?? [];
    const ids = new Set(kept.map((entry) => entry.id));
    return [...kept, ...own.filter((entry) => !ids.has(entry.id))].sort((a, b) => b.changed - a.changed);
  },
};
