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
  create: () => ({ id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "", changed: Date.now(), messages: [] }),
  load: (id) => read(SESSION + id, null),
  remove: (id) => localStorage.removeItem(SESSION + id),

  /** Throws if the browser has no room left. */
  save(session) {
    session.changed = Date.now();
    localStorage.setItem(SESSION + session.id, JSON.stringify(session));
  },

  /** All of them, the newest first. */
  list() {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(SESSION));
    const all = names.map((name) => read(name, null)).filter((session) => Array.isArray(session?.messages));
    return all.sort((a, b) => b.changed - a.changed);
  },
};
