//! Chat templates against stored renderings of Jinja in Python.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::Error;
use engine::gguf::Gguf;
use engine::text::{ChatTemplate, Message, RenderOptions, Tokenizer, VocabSource};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::common::skipped;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the reference's templates are; they may not be copied into this repository.
fn reference() -> Option<PathBuf> {
    let path = root().join("../shared/reference/chat");
    if !path.is_dir() {
        skipped(format_args!("{} is not there", path.display()));
        return None;
    }
    Some(path)
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

fn messages(json: &Value) -> Vec<Message> {
    serde_json::from_value(json.clone()).unwrap()
}

/// The sentence of a template error.
fn sentence(error: Error) -> String {
    match error {
        Error::Template(sentence) => sentence,
        other => panic!("not a template error: {other}"),
    }
}

fn render_case(template: &ChatTemplate, case: &Value) -> Result<String, Error> {
    let options = RenderOptions {
        tools: case.get("tools").cloned(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        enable_thinking: case.get("enable_thinking").map(|value| value.as_bool().unwrap()),
        kwargs: Map::new(),
    };
    template.render(&messages(&case["messages"]), &options)
}

/// Runs the cases of one file; returns how many texts and how many errors it holds.
fn check_cases(source: &str, cases: &Value) -> (usize, usize) {
    let template = ChatTemplate::new(source, "", "<|im_end|>").unwrap();
    let (mut texts, mut errors) = (0, 0);
    for case in cases.as_array().unwrap() {
        let rendered = render_case(&template, case);
        if let Some(expected) = case.get("expected") {
            assert_eq!(rendered.unwrap(), expected.as_str().unwrap(), "{}", case["name"]);
            texts += 1;
        } else {
            let sentence = sentence(rendered.unwrap_err());
            let expected = case["error"].as_str().unwrap();
            // The template's own sentences, not those of Jinja in Python.
            if source.contains(&format!("raise_exception('{expected}')")) {
                assert_eq!(sentence, expected, "{}", case["name"]);
            }
            errors += 1;
        }
    }
    (texts, errors)
}

#[test]
fn fixture_template_renders_as_the_reference() {
    let dir = root().join("tests/fixtures/chat");
    let cases = read_json(dir.join("cases-fixture-template.json"));
    assert_eq!(check_cases(&read(dir.join("fixture-template.jinja")), &cases), (6, 0));
}

#[test]
fn qwen_templates_render_as_the_reference() {
    let Some(dir) = reference() else { return };
    for (name, counts) in [("Qwen3.5-4B", (21, 4)), ("Qwen3-0.6B", (22, 3))] {
        let cases = read_json(dir.join(format!("cases-{name}.json")));
        let source = read(dir.join(format!("{name}.jinja")));
        assert_eq!(check_cases(&source, &cases["cases"]), counts, "{name}");
    }
}

/// Statements, filters, tests and number forms, template by template (tests/fixtures/README.md).
#[test]
fn jinja_behaves_as_in_python() {
    let file = read_json(root().join("tests/fixtures/chat/jinja.json"));
    let kwargs = Map::from_iter([("x".to_owned(), file["context"]["x"].clone())]);
    let options = RenderOptions { kwargs, ..RenderOptions::default() };
    let messages = messages(&file["context"]["messages"]);
    for case in file["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let rendered =
            ChatTemplate::new(source, "", "").and_then(|t| t.render(&messages, &options));
        match (rendered, case["expected"].as_str()) {
            (Ok(text), Some(expected)) => assert_eq!(text, expected, "{source}"),
            (Err(error), None) => {
                let raised = case["error"].as_str().unwrap().strip_prefix("TemplateError: ");
                let sentence = sentence(error);
                assert!(raised.is_none_or(|raised| sentence == raised), "{source}: {sentence}");
            }
            (rendered, _) => panic!("{source}\nours:     {rendered:?}\nexpected: {case}"),
        }
    }
}

#[test]
fn prompt_converts_what_clients_send() {
    let dir = root().join("tests/fixtures/chat");
    let template =
        ChatTemplate::new(&read(dir.join("fixture-template.jinja")), "", "<|im_end|>").unwrap();
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let prompt = |json| template.prompt(&messages(&json), &options).unwrap();

    let merged = json!([
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "q"},
    ]);
    assert_eq!(
        prompt(merged),
        "<|im_start|>system\na\n\nb<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );

    let continued = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "The answer is\n"},
    ]);
    assert_eq!(
        prompt(continued),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThe answer is\n"
    );
}

#[test]
fn a_model_file_brings_its_template() {
    let path = root().join("tests/fixtures/models/tiny-qwen35.gguf");
    let mut source = VocabSource::from_gguf(&Gguf::open(path).unwrap()).unwrap();
    let tokenizer = Tokenizer::new(&source).unwrap();
    let template = ChatTemplate::of_model(&source, &tokenizer).unwrap();
    let text = template.prompt(&[Message::new("user", "Hi")], &RenderOptions::default()).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n");

    source.chat_template = None;
    let error = ChatTemplate::of_model(&source, &tokenizer).err().unwrap();
    assert!(sentence(error).contains("no tokenizer.chat_template"));
}

#[test]
fn chatml_is_built_in() {
    let template = ChatTemplate::chatml("", "<|im_end|>").unwrap();
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let conversation = [Message::new("system", "s"), Message::new("user", "u\n")];
    assert_eq!(
        template.prompt(&conversation, &options).unwrap(),
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu\n<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn variables_reach_the_template() {
    let source = "{{ bos_token }}|{{ eos_token }}|{{ effort }}|{{ tools is defined }}|\
        {{ enable_thinking is defined }}|{{ strftime_now('%Y') | length }}";
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let mut options = RenderOptions::default();
    options.kwargs.insert("effort".into(), json!("low"));
    assert_eq!(template.render(&[], &options).unwrap(), "<s>|</s>|low|False|False|4");
    options.tools = Some(json!([]));
    options.enable_thinking = Some(false);
    assert_eq!(template.render(&[], &options).unwrap(), "<s>|</s>|low|True|True|4");
}

/// A template is code from the file (spec/gguf.md 6.20): too much work ends with an error.
#[test]
fn endless_work_ends_with_an_error() {
    let nested = |filter| {
        format!(
            "{{% set ns = namespace(a=[1]) %}}{{% for i in range(64) %}}\
             {{% set ns.a = [ns.a, ns.a] %}}{{% endfor %}}{{{{ ns.a {filter} }}}}"
        )
    };
    let doubled = "{% set a = a ~ a %}".repeat(60);
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}".into(),
        format!("{{% set a = 'xxxxxxxx' %}}{doubled}{{{{ a }}}}"),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(),
        "{{ range(1000000000) | list }}".into(),
        "{{ 'x' * 10000000000 }}".into(),
        nested(""),
        nested("| string"),
        nested("| tojson"),
    ] {
        let template = ChatTemplate::new(&source, "", "").unwrap();
        let error = template.render(&[], &RenderOptions::default()).unwrap_err();
        assert!(!sentence(error).is_empty(), "{source}");
    }
}

#[test]
fn broken_templates_are_refused() {
    for source in ["{% if %}", "{{ 1", "{% if x %}", "{{ x | nofilter", &"x".repeat(300_000)] {
        assert!(ChatTemplate::new(source, "", "").is_err(), "{source:.40}");
    }
}

/// Sources of the most bytes that are taken.
#[test]
fn large_templates_compile_soon() {
    for part in [
        "{{ a }}",
        "{% set a = 1 %}",
        "{# #}",
        "{{ a|e }}",
        "{% if a %}{% endif %}",
        "{{ [a, a, a, a] }}",
        "{% macro m() %}{{ a }}{% endmacro %}",
        "{% for a in b %}{{ a }}{% endfor %}",
        "{{ 'aaaaaaaa' }}",
        "{%",
        "{% block b %}",
        "{% generation %}",
        "{{ a.b.c.d }}",
        "{{",
        "a\n",
    ] {
        let source = part.repeat((256 << 10) / part.len());
        let start = Instant::now();
        let refused = ChatTemplate::new(&source, "", "").is_err();
        println!("{part}: {:?}, refused: {refused}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(2), "{part}: {:?}", start.elapsed());
    }
}

/// Values and expressions so deep that handling them takes more stack than a thread usually has.
#[test]
fn depth_does_not_exhaust_the_stack() {
    let deep = "{% set ns = namespace(a=[1]) %}{% for i in range(1000) %}{% for j in range(300) %}\
        {% set ns.a = [ns.a] %}{% endfor %}{% endfor %}";
    let render =
        |source: &str| ChatTemplate::new(source, "", "")?.render(&[], &RenderOptions::default());
    for (end, expected) in [
        ("", Some("")),
        ("{{ ns.a == [ns.a] }}", Some("False")),
        ("{{ (ns.a ~ '') | length }}", Some("600003")),
        ("{{ [ns.a, ns.a] | unique | list | length }}", Some("1")),
        ("{{ ns.a }}", None),
        ("{{ ns.a | tojson }}", None),
    ] {
        assert_eq!(render(&format!("{deep}{end}")).ok().as_deref(), expected, "{end}");
    }
    for (open, close) in
        [("not ", ""), ("-", ""), ("(", ")"), ("[", "]"), ("", "+1"), ("", ".a"), ("", "|e")]
    {
        let n = 200_000 / (open.len() + close.len());
        let source = format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
        // An error or a text, but no crash.
        drop(render(&source));
    }
}

proptest! {
    /// Whatever a template is made of, it renders or fails with a sentence.
    #[test]
    fn random_templates_do_not_panic(parts in prop::collection::vec(
        prop_oneof![
            prop::sample::select(vec![
                "{{ ", " }}", "{% ", " %}", "{%- ", " -%}", "{# ", " #}", "for m in ", "messages", "endfor",
                "if ", "endif", "else", "set a = ", "macro f(x)", "endmacro", "f(1)", "generation",
                "endgeneration", "raw", "m.role", "m.content", "[::-1]", "[0]", "[-1]", "|tojson(indent=2)",
                "|string", "|int", "|trim", "|length", "|default(1)", "|join(',')", " ~ ", " + ", " * 9",
                "'é'", "1e-5", "99999999999999999999", "none", "a", "(", ")", "[", "]", "{", "}", ",", "\n",
                ".split('')", ".strip('é')", "strftime_now('%Y%')", "raise_exception('x')", "range(3)",
                "namespace(a=1)", " is defined", " in ", " not ", " if ", " else ", "loop.index",
            ]).prop_map(str::to_owned),
            r"\PC{0,3}",
        ],
        0..25,
    )) {
        let conversation = [Message::new("user", "Hé"), Message::new("assistant", "")];
        let rendered = ChatTemplate::new(&parts.concat(), "", "")
            .and_then(|template| template.render(&conversation, &RenderOptions::default()));
        if let Err(error) = rendered {
            prop_assert_ne!(sentence(error), "rendering it failed");
        }
    }
}
