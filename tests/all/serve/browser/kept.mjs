// Conversations that the server keeps: begun in one browser, gone on with in another, deleted.
//
//   node kept.mjs http://127.0.0.1:8080 [folder for pictures]

import assert from "node:assert/strict";
import { helpers, launch } from "./browser.mjs";

const [address, pictures] = process.argv.slice(2);
const [desk, phone] = [await launch({ width: 1200, height: 800 }), await launch({ width: 390, height: 780 })];
const [at, on] = [helpers(desk.page), helpers(phone.page)];
const picture = (page, name) => pictures && page.screenshot({ path: `${pictures}/${name}.png` });
const entries = (page, count) => page.waitForFunction((n) => document.querySelectorAll(".session").length === n, count);
const said = (page, count) => page.waitForFunction((n) => document.querySelectorAll(".message.assistant").length === n, count);
const kept = async () => (await (await fetch(`${address}/conversations`)).json()).conversations;

// One that this browser has from before.
await desk.page.goto(address);
await desk.page.evaluate(() => {
  const messages = [{ role: "user", content: "Hello?" }, { role: "assistant", content: "Hello." }];
  localStorage.setItem("engine.session.old", JSON.stringify({ id: "old", title: "Before", changed: 1, messages }));
});
await desk.page.reload();
await desk.page.waitForFunction(() => document.querySelector("#where").textContent.includes("server"));
await entries(desk.page, 1);
await desk.page.click("#new");
await at.set({ max_tokens: "20", temperature: "0" });
await at.send("Tell me a story.");
await at.idle();
const text = await at.answers().first().locator(".body").innerText();
await entries(desk.page, 2);
await desk.page.waitForFunction(() => Object.keys(localStorage).filter((name) => name.startsWith("engine.session.")).join() === "engine.session.old");
assert.deepEqual((await kept()).map((entry) => entry.title), ["Tell me a story."]);
await picture(desk.page, "kept");

// Gone on with on a phone, where the server goes on, too.
await phone.page.goto(address);
await said(phone.page, 1);
assert.equal(await on.answers().first().locator(".body").innerText(), text);
await phone.page.click("#menu");
await entries(phone.page, 1);
await phone.page.waitForTimeout(300);
await picture(phone.page, "kept-phone");
await on.set({ max_tokens: "20", temperature: "0" });
await on.send("And then?");
await on.idle();
assert.match(await on.answers().nth(1).locator(".facts").innerText(), /read before/);
await desk.page.reload();
await said(desk.page, 2);

// The one from before moves to the server when it is gone on with.
await desk.page.locator(".session .title", { hasText: "Before" }).click();
await desk.page.locator(".session.open", { hasText: "Before" }).waitFor();
await at.set({ max_tokens: "20", temperature: "0" });
await at.send("Are you there?");
await at.idle();
await desk.page.waitForFunction(() => !Object.keys(localStorage).some((name) => name.startsWith("engine.session.")));
assert.equal((await kept()).length, 2);

// Deleted here, it is gone everywhere.
for (const left of [1, 0]) {
  await desk.page.locator(".session .drop").first().click();
  await entries(desk.page, left);
}
assert.deepEqual(await kept(), []);
await phone.page.reload();
await phone.page.waitForFunction(() => document.querySelector("#where").textContent.includes("server"));
await entries(phone.page, 0);
assert.deepEqual([...desk.faults, ...phone.faults], []);
await desk.close();
await phone.close();
console.log("conversations are kept");
