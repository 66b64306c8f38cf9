use super::*;

fn template(source: &str) -> Template {
    let tokens = [("bos_token".to_string(), "<s>".to_string())];
    Template::new(source, tokens.into(), Day::default()).unwrap()
}

fn chat(roles: &[&str]) -> Conversation {
    let mut conversation = Conversation::default();
    for (number, role) in roles.iter().enumerate() {
        conversation.push(role, &format!("text {number}"));
    }
    conversation
}

/// Returns the text that a template makes of a question.
fn prompt(source: &str) -> Result<String, ChatError> {
    template(source).prompt(&chat(&["user"]))
}

#[test]
fn blocks_take_no_lines_and_python_has_its_methods() {
    let source = "{{ bos_token }}{% for message in messages %}\n  {% if loop.first %}\n[{{ message['role'].upper() }}]\n  \
                  {% endif %}\n{{ message.content.split(' ')[0].strip() + '!' }}{% break %}\n{% endfor %}\n";
    assert_eq!(prompt(source).unwrap(), "<s>[USER]\ntext!");
    let source = "{% for name, value in messages[0].items() %}{{ name }}={{ value }};{% endfor %}";
    assert_eq!(prompt(source).unwrap(), "role=user;content=text 0;");
    assert_eq!(
        prompt("{{ messages[0].get('name', 'none') }}").unwrap(),
        "none"
    );
    assert_eq!(
        prompt("{{ tools is none }}{{ add_generation_prompt }}").unwrap(),
        "TrueTrue"
    );
}

/// Each as `json.dumps` of Python 3 writes it.
#[test]
fn json_is_that_of_python() {
    for (value, expected) in [
        (
            "{'b': 1, 'a': [true, none, 1.0, 0.1]}",
            r#"{"b": 1, "a": [true, null, 1.0, 0.1]}"#,
        ),
        (
            "['<é&\\n\\t\"\\\\>', 1e16, 1.5e-7, -0.0]",
            r#"["<é&\n\t\"\\>", 1e+16, 1.5e-07, -0.0]"#,
        ),
        ("[]", "[]"),
        ("123456789012345678", "123456789012345678"),
    ] {
        assert_eq!(
            prompt(&format!("{{{{ {value}|tojson }}}}")).unwrap(),
            expected
        );
    }
    let indented = prompt("{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}").unwrap();
    assert_eq!(
        indented,
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
    );
    let options = "ensure_ascii=true, separators=[',', ':'], sort_keys=true";
    let found = prompt(&format!(
        "{{{{ {{'é': '\u{1F980}', 'a': 1}}|tojson({options}) }}}}"
    ));
    assert_eq!(found.unwrap(), r#"{"a":1,"\u00e9":"\ud83e\udd80"}"#);
    assert!(prompt("{{ 1|tojson(nothing=1) }}").is_err());
}

#[test]
fn a_day_is_written_as_python_writes_it() {
    let written = |seconds, format: &str| {
        let source = format!("{{{{ strftime_now('{format}') }}}}");
        let template = Template::new(&source, Default::default(), Day::at(seconds)).unwrap();
        template.prompt(&chat(&["user"])).unwrap()
    };
    let all = "%d %b %Y, %A %a %B %m %y %j %H:%M:%S %I %p %e %F %T %%";
    // datetime.utcfromtimestamp(seconds).strftime(...)
    for (seconds, expected) in [
        (
            0,
            "01 Jan 1970, Thursday Thu January 01 70 001 00:00:00 12 AM  1 1970-01-01 00:00:00 %",
        ),
        (
            1_709_251_199,
            "29 Feb 2024, Thursday Thu February 02 24 060 23:59:59 11 PM 29 2024-02-29 23:59:59 %",
        ),
        (
            4_102_488_000,
            "01 Jan 2100, Friday Fri January 01 00 001 12:00:00 12 PM  1 2100-01-01 12:00:00 %",
        ),
        (
            1_798_761_599,
            "31 Dec 2026, Thursday Thu December 12 26 365 23:59:59 11 PM 31 2026-12-31 23:59:59 %",
        ),
    ] {
        assert_eq!(written(seconds, all), expected);
    }
    assert_eq!(
        prompt("{{ strftime_now('%d %b %Y') }}").unwrap(),
        "26 Jul 2024"
    );
    let error = prompt("{{ strftime_now('%Q') }}").unwrap_err().to_string();
    assert!(error.contains("strftime_now has no %Q"), "{error}");
}

#[test]
fn templates_that_fail_or_go_on_are_named() {
    let error = |source: &str| prompt(source).unwrap_err().to_string();
    let raised = error("{{ raise_exception('roles must alternate') }}");
    assert!(raised.starts_with("the chat template failed: "), "{raised}");
    assert!(raised.contains("roles must alternate"), "{raised}");
    let broken = Template::new("{% if %}", Default::default(), Day::default());
    assert!(matches!(broken.unwrap_err(), ChatError::Template(_)));
    for endless in [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(text='x') %}{% for a in range(60) %}{% set ns.text = ns.text ~ ns.text %}{% endfor %}",
        "{{ 'x' * 99999999 }}",
    ] {
        let found = prompt(endless).unwrap_err();
        assert!(
            matches!(found, ChatError::Endless { .. }),
            "{endless}: {found}"
        );
    }
    let recursive = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    assert!(prompt(recursive).is_err());
}

#[test]
fn answers_are_marked_or_found_by_what_they_add() {
    let marked = "{% for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}\
                  {%- generation -%} {{ message.content }}; {%- endgeneration %}{% else %}{{ message.content }}{% endif %}\
                  {% endfor %}";
    let plain = "{% for message in messages %}<{{ message.role }}>{{ message.content }};{% endfor %}\
                 {% if add_generation_prompt %}<assistant>{% endif %}";
    let talk = chat(&["system", "user", "assistant", "user", "assistant"]);
    for (source, is_marked) in [(marked, true), (plain, false)] {
        let rendered = template(source).with_answers(&talk).unwrap();
        assert_eq!(rendered.is_marked, is_marked);
        let answers = rendered
            .answers
            .iter()
            .map(|range| &rendered.text[range.clone()]);
        assert_eq!(
            answers.collect::<Vec<_>>(),
            ["text 2;", "text 4;"],
            "{}",
            rendered.text
        );
        let none = template(source).with_answers(&chat(&["user"])).unwrap_err();
        assert!(matches!(none, ChatError::NoAnswer), "{none}");
    }
    // Earlier answers are cut once others follow.
    let cut = "{% for message in messages %}<{{ message.role }}>{{ message.content if loop.last else '' }}{% endfor %}";
    let error = template(cut).with_answers(&talk).unwrap_err();
    assert!(matches!(error, ChatError::Prefix { message: 3 }), "{error}");
    let many = chat(&["assistant"; 2000]);
    let error = template(plain).with_answers(&many).unwrap_err();
    assert!(
        matches!(error, ChatError::TooMany { answers: 2000 }),
        "{error}"
    );
}

#[test]
fn messages_are_read_as_the_library_reads_them() {
    let read = |json: &str| {
        let conversation = Conversation::parse(json).unwrap();
        template("{{ messages|tojson }}")
            .prompt(&conversation)
            .unwrap()
    };
    let plain = r#"[{"role": "user", "z": 1, "content": "a", "b": {"d": 1, "c": null}}]"#;
    assert_eq!(read(plain), plain);
    assert_eq!(
        read(r#"[{"role":"user","name":null,"content":"a"}]"#),
        r#"[{"role": "user", "content": "a"}]"#
    );
    assert_eq!(
        read(r#"[{"role":"assistant","content":"a","reasoning":"r"}]"#),
        r#"[{"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}]"#
    );
    for wrong in [
        "{}",
        "[1]",
        "[{\"content\": \"a\"}]",
        "[{\"role\": 1}]",
        "[",
        "\"a\"",
    ] {
        let error = Conversation::parse(wrong).unwrap_err();
        assert!(
            matches!(error, ChatError::Conversation(_)),
            "{wrong}: {error}"
        );
    }
    let error =
        Conversation::parse("[{\"role\": \"user\", \"content\": \"\\ufdd0\"}]").unwrap_err();
    assert!(matches!(error, ChatError::Mark('\u{FDD0}')), "{error}");
}
