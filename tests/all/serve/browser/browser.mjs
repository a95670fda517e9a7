// A browser of its own, and what people do with the page in it.

import { createRequire } from "node:module";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";

// From where it was installed, which need not be beside this file.
const require = createRequire(`${process.cwd()}/`);
const { chromium } = require("playwright-core");

/** One that knows nothing of earlier ones, with a page; `faults` are what the page says is wrong. */
export async function launch(viewport) {
  const browser = await chromium.launchPersistentContext(mkdtempSync(`${tmpdir()}/page-`), {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    viewport,
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  const faults = [];
  // Answers other than 200 are told there, too: without a key they are meant.
  page.on("console", (m) => m.type() === "error" && !m.text().includes("status of 401") && faults.push(m.text()));
  page.on("pageerror", (e) => faults.push(String(e)));
  page.on("dialog", (d) => d.accept());
  return { page, faults, close: () => browser.close() };
}

export function helpers(page) {
  return {
    answers: () => page.locator(".message.assistant"),
    idle: () => page.locator("#send").waitFor({ state: "visible" }),

    async send(text) {
      await page.fill("#input", text);
      await page.press("#input", "Enter");
    },

    async set(values) {
      await page.click("#settings-open");
      for (const [name, value] of Object.entries(values)) {
        const field = page.locator(`#settings [name=${name}]`);
        if (name === "theme" || name === "thinking") await field.selectOption(value);
        else await field.fill(value);
      }
      await page.click("#settings button.primary");
    },
  };
}
