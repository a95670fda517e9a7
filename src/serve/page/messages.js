// A message as the page shows it.

import { render } from "./markdown.js";

export function make(name, props = {}, ...children) {
  const made = Object.assign(document.createElement(name), props);
  made.append(...children);
  return made;
}

const action = (label, name) => make("button", { type: "button", className: "quiet", textContent: label, onclick: null, value: name });

/** The view of one message, drawn again when the message has changed. */
export class MessageView {
  constructor(message, act) {
    this.message = message;
    this.root = make("article", { className: `message ${message.role}` });
    this.root.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.copy) copy(button, button.closest(".code").querySelector("code").textContent);
      else if (button?.value === "copy") copy(button, this.message.content);
      else if (button?.value) act(button.value, this);
    });
    this.summary = make("summary");
    this.thought = make("div", { className: "text" });
    this.thinking = make("details", { className: "thinking", hidden: true }, this.summary, this.thought);
    this.body = make("div", { className: "body" });
    this.error = make("div", { className: "error", hidden: true });
    this.foot = make("div", { className: "foot" });
    this.root.append(this.thinking, this.body, this.error, this.foot);
    this.draw();
  }

  /** `busy`: more is to come. */
  draw(busy = false) {
    const { role, content, reasoning, facts, error, thoughtFor } = this.message;
    if (role === "user") {
      this.body.textContent = content;
      this.foot.replaceChildren(action("Copy", "copy"), action("Edit", "edit"));
      return;
    }
    this.thinking.hidden = !reasoning;
    const thinks = busy && reasoning && !content;
    this.summary.textContent = thinks ? "Thinking …" : thoughtFor ? `Thought for ${seconds(thoughtFor)}` : "Thinking";
    if (this.thought.textContent !== (reasoning ?? "")) this.thought.textContent = reasoning ?? "";
    this.body.replaceChildren(render(content));
    this.body.classList.toggle("busy", busy);
    this.error.hidden = !error;
    this.error.textContent = error ?? "";
    this.foot.replaceChildren();
    if (busy) return;
    if (facts) this.foot.append(make("span", { className: "facts", textContent: facts }));
    if (content) this.foot.append(action("Copy", "copy"));
    this.foot.append(action(error ? "Try again" : "Regenerate", "again"));
  }
}

export const seconds = (s) => (s < 60 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);

async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "No access to the clipboard";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
