use super::*;
use insta::assert_snapshot;

fn mesh() -> MeshShape {
    MeshShape::parse("dp=2,fsdp=2,cp=2,tp=2,one:model=1").unwrap()
}

#[test]
fn text_round_trips() {
    let mesh = mesh();
    let cases: [(&str, &[usize]); 8] = [
        ("[]", &[]),
        ("[-]", &[0]),
        ("[{dp}, -, (4 . 8{tp})] + sum{cp}", &[5, 3, 32]),
        ("[{tp, fsdp*}, -]", &[7, 7]),
        ("[-, {fsdp*, tp}] + max{dp, cp}", &[1, 2]),
        ("[(2{dp} . 3 . 4{tp, cp})]", &[24]),
        ("[] + mean{fsdp}", &[]),
        ("[-] + sum{fsdp} + mean{dp, tp}", &[9]),
    ];
    for (text, shape) in cases {
        let layout = Layout::parse(text, &mesh, Some(shape)).unwrap();
        assert_eq!(layout.display(&mesh).to_string(), text);
        let sized = format!("{:#}", layout.display(&mesh));
        assert_eq!(
            Layout::parse(&sized, &mesh, None).unwrap(),
            layout,
            "{sized}"
        );
    }
}

#[test]
fn reading_normalises() {
    let mesh = mesh();
    let read = |text: &str| {
        let layout = Layout::parse(text, &mesh, Some(&[12])).unwrap();
        layout.display(&mesh).to_string()
    };
    assert_eq!(read(" [ ( 2.6 ) ] "), "[-]");
    assert_eq!(read("[12]"), "[-]");
    assert_eq!(read("[12{one}] + sum{tp}"), "[-] + sum{tp}");
    assert_eq!(
        read("[(1 . 3{tp,one*} . 2 . 2)]+max{dp}"),
        "[(3{tp} . 4)] + max{dp}"
    );
    assert_eq!(read("[-]+sum{tp}+sum{dp}"), "[-] + sum{dp, tp}");
}

#[test]
fn an_axis_is_taken_out_of_every_place() {
    for (text, left) in [
        ("[-, {tp}, -]", None),
        ("[{dp}, {tp}, -]", Some("[{dp}, -, -]")),
        ("[{dp, tp}, -]", Some("[{dp}, -]")),
        ("[{dp}, (4 . 8{tp})]", Some("[{dp}, (4 . 8)]")),
        ("[{dp}, 16{tp}]", Some("[{dp}, 16]")),
        ("[{dp}, -] + sum{tp}", Some("[{dp}, -]")),
        ("[-] + sum{tp, cp}", Some("[-] + sum{cp}")),
        ("[-] + sum{tp} + sum{cp}", Some("[-] + sum{cp}")),
        ("[-]", None),
    ] {
        let read = LayoutText::parse(text).unwrap();
        assert_eq!(read.canonical(), text);
        let without = read.without("tp");
        let without = without.as_ref().map(LayoutText::as_str);
        assert_eq!(without, left, "{text} without tp");
    }
}

#[test]
fn the_form_is_checked_without_a_mesh() {
    for (text, ndim) in [
        ("[]", 0),
        ("[-]", 1),
        ("[{dp, tp}, (4 . 8{cp}), 16]", 3),
        ("[ {dp , tp}, - ]", 2),
        ("[-] + sum{tp}", 1),
    ] {
        let read = LayoutText::parse(text).map(|read| (read.ndim(), read.to_string()));
        assert_eq!(read, Ok((ndim, text.to_owned())));
    }
    for (text, column) in [
        ("", 1),
        ("-, {tp}", 1),
        ("[-", 3),
        ("[-, tp]", 5),
        ("[-, {tp]", 8),
        ("[-, {tp}", 9),
        ("[-, {}]", 6),
        ("[{tp, -]", 7),
        ("[{tp}, {tp}]", 9),
        ("[{tp}] + sum{tp}", 14),
        ("[(4 . ), -]", 7),
        ("[(4 . {tp})]", 7),
        ("[-] + avg{tp}", 7),
        ("[-] tp", 5),
        ("[-];x", 4),
        ("[{tp*}]", 5),
    ] {
        match LayoutText::parse(text) {
            Err(LayoutError::Parse { column: found, .. }) => {
                assert_eq!(found, column, "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let mixed = LayoutText::parse("[-] + sum{tp} + max{cp}");
    assert!(matches!(mixed, Err(LayoutError::MixedPartial { .. })));
}

#[test]
fn errors_point_at_the_column() {
    let mesh = mesh();
    let texts = [
        "{tp}",
        "[{tp, foo}, -]",
        "[{tp}, {tp}]",
        "[{tp}, -] + sum{tp}",
        "[{tp}",
        "[{tp} -]",
        "[-]",
        "[-, -, -]",
        "[(4 . {tp}), -]",
        "[(4 . 3{tp}), -]",
        "[9, -]",
        "[x, -]",
        "[{}, -]",
        "[-, -] sum{tp}",
        "[-, -] + add{tp}",
        "[-, -] + sum{tp*}",
        "[99999999999999999999999, -]",
    ];
    let errors: Vec<_> = texts
        .iter()
        .map(|text| {
            Layout::parse(text, &mesh, Some(&[8, 8]))
                .unwrap_err()
                .to_string()
        })
        .collect();
    assert_snapshot!(errors.join("\n"), @r"
    cannot read the layout, column 1: found `{`, but a layout starts with `[`
      {tp}
      ^
    cannot read the layout, column 7: the mesh has no axis `foo`: it has dp, fsdp, cp, tp, one
      [{tp, foo}, -]
            ^
    cannot read the layout, column 9: axis `tp` is used twice
      [{tp}, {tp}]
              ^
    cannot read the layout, column 17: axis `tp` is used twice
      [{tp}, -] + sum{tp}
                      ^
    cannot read the layout, column 6: the text ends, but dims are separated by `,` and end with `]`
      [{tp}
           ^
    cannot read the layout, column 7: found `-`, but dims are separated by `,` and end with `]`
      [{tp} -]
            ^
    cannot read the layout, column 3: the shape [8, 8] has 2 dims, but there are 1 here
      [-]
        ^
    cannot read the layout, column 8: the shape [8, 8] has no dim 2
      [-, -, -]
             ^
    cannot read the layout, column 7: the size is not known here: write it before the axes, as in `8{tp}`
      [(4 . {tp}), -]
            ^
    cannot read the layout, column 2: this dim is of size 12, but the shape says 8
      [(4 . 3{tp}), -]
       ^
    cannot read the layout, column 2: this dim is of size 9, but the shape says 8
      [9, -]
       ^
    cannot read the layout, column 2: a dim is `-`, axes such as `{tp}`, or factors such as `(4 . 8{tp})`
      [x, -]
       ^
    cannot read the layout, column 3: the name of an axis is missing
      [{}, -]
        ^
    cannot read the layout, column 8: found `s`, but after the dims only `+ sum{axis}` and the like may follow
      [-, -] sum{tp}
             ^
    cannot read the layout, column 10: `add` is no reduction: there are sum, mean, min, max, prod
      [-, -] + add{tp}
               ^
    cannot read the layout, column 16: found `*`, but axes are separated by `,` and end with `}`
      [-, -] + sum{tp*}
                     ^
    cannot read the layout, column 2: `99999999999999999999999` is too large for a size
      [99999999999999999999999, -]
       ^
    ");
    let err = Layout::parse("", &mesh, None).unwrap_err();
    assert!(matches!(err, LayoutError::Parse { column: 1, .. }));
    let err = Layout::parse("[{tp}, 3]", &mesh, None).unwrap_err();
    assert!(matches!(err, LayoutError::Parse { column: 2, .. }));
    let err = Layout::parse("[3{tp}, -]", &mesh, None).unwrap_err();
    assert!(matches!(err, LayoutError::Parse { column: 9, .. }));
    let err = Layout::parse("[-] + sum{tp} + max{dp}", &mesh, Some(&[3])).unwrap_err();
    assert!(matches!(err, LayoutError::MixedPartial { .. }));
}

#[test]
fn what_was_read_is_made_again_from_its_parts() {
    let text = "[-, (2 . 4{dp,cp}), {tp}] + sum{ep}";
    let parts = LayoutParts {
        text,
        end: 25,
        dims: &[
            (2, &[(2, None, &[])]),
            (
                5,
                &[(6, Some(2), &[]), (10, Some(4), &[(12, "dp"), (15, "cp")])],
            ),
            (21, &[(21, None, &[(22, "tp")])]),
        ],
        partial: &[(ReduceOp::Sum, &[(33, "ep")])],
    };
    assert_eq!(LayoutText::parse(text), Ok(LayoutText::from_parts(&parts)));
}
