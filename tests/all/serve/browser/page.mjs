// Drives the page in headless Chromium: send, stream, stop, reload, saved conversation, key.
//
//   npm install playwright-core && node page.mjs http://127.0.0.1:8080 [folder for pictures] [key]
//
// `tests/all/serve/page.rs` runs it where Node.js, playwright-core and Chromium are there.

import assert from "node:assert/strict";
import { helpers, launch } from "./browser.mjs";

const [address, pictures, key] = process.argv.slice(2);
const browser = await launch({ width: 1200, height: 800 });
const { page, faults } = browser;
const { answers, idle, send, set } = helpers(page);

const picture = (name) => pictures && page.screenshot({ path: `${pictures}/${name}.png` });

await page.goto(address);
if (key) {
  await page.locator("#key").waitFor({ state: "visible" });
  await picture("key");
  await page.fill("#key input", key);
  await page.press("#key input", "Enter");
}
await page.waitForFunction(() => document.querySelector("#meter .label").textContent.includes("tokens"));
await picture("empty");

// Send, and see it come piece by piece.
await set({ max_tokens: "60", temperature: "0", seed: "1" });
await send("Tell me a story.");
await page.waitForFunction(() => document.querySelector(".assistant .body.busy")?.textContent.length > 3);
const early = await answers().first().locator(".body").innerText();
await idle();
const first = await answers().first().locator(".body").innerText();
assert(first.length > early.length, `${early} … ${first}`);
assert.match(await answers().first().locator(".facts").innerText(), /60 tokens · [\d.]+ tokens\/s/);
assert.match(await page.locator("#meter .label").innerText(), /^[1-9]/);
await picture("answered");

// Stop an answer that would not end.
await set({ max_tokens: "1000", temperature: "1.5" });
await send("And another one, as long as you can.");
await page.waitForFunction(() => document.querySelectorAll(".assistant")[1]?.querySelector(".body.busy")?.textContent.length > 3);
await page.press("body", "Escape");
await idle();
assert.match(await answers().nth(1).innerText(), /stopped/);

// Greedy answers repeat.
await page.click("#new");
await set({ max_tokens: "20", temperature: "0" });
await send("Tell me a story.");
await idle();
const before = await answers().first().locator(".body").innerText();
await answers().first().locator("button[value=again]").click();
await idle();
assert.equal(await answers().first().locator(".body").innerText(), before);
assert.equal(await answers().count(), 1);

// Both conversations are there after a reload, the newest open.
await page.reload();
assert.equal(await page.locator(".session").count(), 2);
assert.equal(await answers().first().locator(".body").innerText(), before);
await page.locator(".session .title").nth(1).click();
assert.equal(await answers().count(), 2);
assert.equal(await answers().first().locator(".body").innerText(), first);

// What a model says stays text; Markdown is drawn.
await page.evaluate(() => {
  const content = "# Title\n\nA list, *short* and **bold**:\n\n1. one with `code`\n2. two\n   - inner\n\n<img src=x onerror=alert(1)> <script>alert(2)</script> [x](javascript:alert(3)) [page](https://example.org/a?b=1)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\n```js\nconst x = \"<b>\"; // " + "long ".repeat(40) + "\n```\n";
  const messages = [{ role: "user", content: "Show me <b>everything</b>." }, { role: "assistant", content, reasoning: "First I think.\nThen I answer.", thoughtFor: 3.2, facts: "120 tokens · 41.0 tokens/s · first after 0.3 s · 900 of 1,020 read before" }];
  localStorage.setItem("engine.session.shown", JSON.stringify({ id: "shown", title: "Everything there is", changed: Date.now() + 1e6, used: 1140, messages }));
});
await page.reload();
const body = answers().first().locator(".body");
assert.equal(await body.locator("img, script").count(), 0);
assert.equal(await body.locator("a").count(), 1);
for (const tag of ["h1", "ol > li", "li ul li", "table td", "blockquote", "pre code", "strong", "em"]) {
  assert(await body.locator(tag).count(), tag);
}
assert.match(await body.innerText(), /<img src=x onerror=alert\(1\)>/);
assert.equal(await answers().first().locator(".thinking .text").isVisible(), false);
await page.click(".assistant .thinking summary");
assert.equal(await answers().first().locator(".thinking .text").isVisible(), true);
await page.click("#meter");
await picture("desktop");
await set({ theme: "dark" });
await picture("dark");
await page.setViewportSize({ width: 390, height: 780 });
await picture("phone-dark");
await page.click("#menu");
await page.waitForTimeout(300);
await picture("phone-menu");
await page.keyboard.press("Escape");
assert(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than a phone");
await page.setViewportSize({ width: 1200, height: 800 });
await page.click("#settings-open");
await picture("settings");
await page.locator("#settings [name=theme]").selectOption("light");
await page.click("#settings button.primary");

// A conversation can be deleted.
await page.locator(".session.open .drop").click();
assert.equal(await page.locator(".session").count(), 2);
assert.deepEqual(faults, []);
await browser.close();
console.log("the page works");
