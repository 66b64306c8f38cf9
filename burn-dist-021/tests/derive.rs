//! What the derive promises: the plan its attributes describe, on every shape of module, and errors that show the way
//! out.

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, LinearLayout, RmsNorm, RmsNormConfig,
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_dist::mesh::MeshShape;
use burn_dist::parallel::{ParallelError, ParamSpec};
use burn_dist::schedule::ScheduleKind;
use burn_dist::{
    ActivationCheckpoint, Float, Float8, Parallelize, Plan, Precision, Scaling, ShardStrategy,
    UnitPolicy,
};

type B = Flex;

fn mesh(text: &str) -> MeshShape {
    MeshShape::parse(text).expect("a mesh")
}

fn linear(input: usize, output: usize) -> Linear<B> {
    LinearConfig::new(input, output)
        .with_bias(false)
        .init(&Default::default())
}

fn param<const D: usize>(shape: [usize; D]) -> Param<Tensor<B, D>> {
    Param::from_tensor(Tensor::zeros(shape, &Default::default()))
}

/// `path: style layout`, and the unit and rest where they are not the usual.
fn lines(specs: &[ParamSpec], mesh: &MeshShape) -> Vec<String> {
    specs
        .iter()
        .map(|spec| {
            let unit = spec
                .unit
                .as_ref()
                .map(|unit| format!(" unit={unit}"))
                .unwrap_or_default();
            let rest = if spec.at_rest { "" } else { " whole" };
            format!(
                "{}: {} {}{unit}{rest}",
                spec.path,
                spec.style,
                spec.layout.display(mesh)
            )
        })
        .collect()
}

fn derived<M: Module<B> + Parallelize>(module: &M, on: &str) -> Vec<String> {
    let mesh = mesh(on);
    lines(
        &module.plan().resolve(module, &mesh).expect("resolves"),
        &mesh,
    )
}

fn planned<M: Module<B>>(module: &M, plan: &Plan, on: &str) -> Vec<String> {
    let mesh = mesh(on);
    lines(&plan.resolve(module, &mesh).expect("resolves"), &mesh)
}

fn refused<M: Module<B>>(module: &M, plan: &Plan, on: &str) -> ParallelError {
    plan.resolve(module, &mesh(on))
        .expect_err("does not resolve")
}

#[derive(Module, Debug, Parallelize)]
struct Attention<B: Backend> {
    #[parallel(colwise, heads = self.n_heads, input = "[-, {tp}, -]")]
    wq: Linear<B>,
    #[parallel(colwise, heads = self.n_kv_heads)]
    wk: Linear<B>,
    #[parallel(rowwise, output = "[-, {tp}, -]")]
    wo: Linear<B>,
    n_heads: usize,
    n_kv_heads: usize,
}

fn attention() -> Attention<B> {
    Attention {
        wq: linear(8, 8),
        wk: linear(8, 4),
        wo: linear(8, 8),
        n_heads: 8,
        n_kv_heads: 4,
    }
}

#[derive(Module, Debug, Parallelize)]
struct Block<B: Backend> {
    #[parallel(sequence)]
    attention_norm: RmsNorm<B>,
    attention: Attention<B>,
    dropout: Dropout,
    plain: Linear<B>,
}

fn block() -> Block<B> {
    Block {
        attention_norm: RmsNormConfig::new(8).init(&Default::default()),
        attention: attention(),
        dropout: DropoutConfig::new(0.1).init(),
        plain: linear(8, 8),
    }
}

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(vocab, unit)]
    tok_embeddings: Embedding<B>,
    #[parallel(unit)]
    layers: Vec<Block<B>>,
    #[parallel(vocab)]
    output: Linear<B>,
}

fn model() -> Model<B> {
    Model {
        tok_embeddings: EmbeddingConfig::new(100, 8).init(&Default::default()),
        layers: vec![block(), block()],
        output: LinearConfig::new(8, 100).init(&Default::default()),
    }
}

#[test]
fn nested_modules_and_lists() {
    let block = |i: usize| {
        vec![
            format!("layers.{i}.attention_norm.gamma: sequence [-] unit=layers.{i}"),
            format!("layers.{i}.attention.wq.weight: colwise [-, {{tp}}] unit=layers.{i}"),
            format!("layers.{i}.attention.wk.weight: colwise [-, {{tp}}] unit=layers.{i}"),
            format!("layers.{i}.attention.wo.weight: rowwise [{{tp}}, -] unit=layers.{i}"),
            format!("layers.{i}.plain.weight: replicate [-, -] unit=layers.{i}"),
        ]
    };
    let mut expected =
        vec!["tok_embeddings.weight: vocab [{tp}, -] unit=tok_embeddings".to_string()];
    expected.extend(block(0));
    expected.extend(block(1));
    expected.push("output.weight: vocab [-, {tp}]".into());
    expected.push("output.bias: vocab [{tp}]".into());
    assert_eq!(derived(&model(), "fsdp=2,tp=2"), expected);
}

#[test]
fn layouts_of_activations_travel_with_the_parameters() {
    let mesh = mesh("tp=2");
    let attention = attention();
    let specs = attention
        .plan()
        .resolve(&attention, &mesh)
        .expect("resolves");
    let text: Vec<String> = specs.iter().map(|spec| spec.to_text(&mesh)).collect();
    assert_eq!(
        text,
        [
            "path=wq.weight;style=colwise;role=weight;layout=[-, {tp}];input=[-, {tp}, -];rest=yes",
            "path=wk.weight;style=colwise;role=weight;layout=[-, {tp}];rest=yes",
            "path=wo.weight;style=rowwise;role=weight;layout=[{tp}, -];output=[-, {tp}, -];rest=yes",
        ]
    );
}

#[test]
fn resolving_initialises_nothing() {
    let module = model();
    module
        .plan()
        .resolve(&module, &mesh("tp=2"))
        .expect("resolves");
    assert!(!module.output.weight.is_initialized());
    assert!(!module.tok_embeddings.weight.is_initialized());
}

#[test]
fn without_the_default_axis_nothing_is_split() {
    let mesh = mesh("fsdp=2");
    let attention = attention();
    let specs = attention
        .plan()
        .resolve(&attention, &mesh)
        .expect("resolves");
    assert_eq!(
        specs[0].to_text(&mesh),
        "path=wq.weight;style=colwise;role=weight;layout=[-, -];rest=yes"
    );
}

#[test]
fn an_axis_of_one_rank_splits_nothing() {
    assert_eq!(
        derived(&attention(), "fsdp=2,tp=1")[0],
        "wq.weight: colwise [-, -]"
    );
}

// A test's enum: what boxing would save is not worth the noise.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug, Parallelize)]
enum Projection<B: Backend> {
    #[parallel(colwise)]
    Dense(Linear<B>),
    Attention(Attention<B>),
    Norm(#[parallel(sequence)] LayerNorm<B>),
}

#[derive(Module, Debug, Parallelize)]
struct Containers<B: Backend> {
    maybe: Option<Attention<B>>,
    never: Option<Attention<B>>,
    #[parallel(colwise)]
    no_linear: Option<Linear<B>>,
    #[parallel(colwise)]
    linears: [Linear<B>; 2],
    #[parallel(rowwise)]
    none_yet: Vec<Linear<B>>,
    pair: (Linear<B>, Attention<B>),
    pairs: Vec<(Attention<B>, Option<Linear<B>>)>,
    nested: Option<[(Linear<B>, Attention<B>); 1]>,
    projection: Projection<B>,
    constant: Tensor<B, 2>,
    count: usize,
    #[module(skip)]
    notes: Vec<String>,
}

fn containers(projection: Projection<B>) -> Containers<B> {
    Containers {
        maybe: Some(attention()),
        never: None,
        no_linear: None,
        linears: [linear(4, 4), linear(4, 4)],
        none_yet: Vec::new(),
        pair: (linear(4, 4), attention()),
        pairs: vec![(attention(), Some(linear(4, 4)))],
        nested: Some([(linear(4, 4), attention())]),
        projection,
        constant: Tensor::zeros([2, 2], &Default::default()),
        count: 3,
        notes: Vec::new(),
    }
}

#[test]
fn options_arrays_tuples_and_constants() {
    let attention = |at: &str| {
        [
            format!("{at}.wq.weight: colwise [-, {{tp}}]"),
            format!("{at}.wk.weight: colwise [-, {{tp}}]"),
            format!("{at}.wo.weight: rowwise [{{tp}}, -]"),
        ]
    };
    let plain = |at: &str| [format!("{at}.weight: replicate [-, -]")];
    let mut expected = Vec::new();
    expected.extend(attention("maybe"));
    expected.push("linears.0.weight: colwise [-, {tp}]".into());
    expected.push("linears.1.weight: colwise [-, {tp}]".into());
    expected.extend(plain("pair.0"));
    expected.extend(attention("pair.1"));
    expected.extend(attention("pairs.0.0"));
    expected.extend(plain("pairs.0.1"));
    expected.extend(plain("nested.0.0"));
    expected.extend(attention("nested.0.1"));
    expected.extend(attention("projection.Attention"));
    assert_eq!(
        derived(
            &containers(Projection::Attention(attention_of_enum())),
            "tp=2"
        ),
        expected
    );
}

fn attention_of_enum() -> Attention<B> {
    attention()
}

#[test]
fn enums_describe_the_variant_they_are() {
    assert_eq!(
        derived(&Projection::Dense(linear(4, 4)), "tp=2"),
        ["Dense.weight: colwise [-, {tp}]"]
    );
    let norm = Projection::Norm(LayerNormConfig::new(4).init(&Default::default()));
    assert_eq!(
        derived(&norm, "tp=2"),
        ["Norm.gamma: sequence [-]", "Norm.beta: sequence [-]"]
    );
}

#[derive(Module, Debug, Parallelize)]
struct Unreached<B: Backend, M> {
    inner: M,
    #[parallel(colwise)]
    head: Linear<B>,
}

#[derive(Module, Debug, Parallelize)]
struct Reached<B: Backend, M: Module<B>> {
    #[parallel(nested)]
    inner: M,
    #[parallel(nested)]
    more: Vec<M>,
    #[parallel(colwise)]
    head: Linear<B>,
}

#[test]
fn generic_fields_are_reached_when_marked() {
    let unreached = Unreached {
        inner: attention(),
        head: linear(4, 4),
    };
    assert_eq!(
        derived(&unreached, "tp=2")[0],
        "inner.wq.weight: replicate [-, -]"
    );
    let reached = Reached {
        inner: attention(),
        more: vec![attention()],
        head: linear(4, 4),
    };
    assert_eq!(
        derived(&reached, "tp=2")[0],
        "inner.wq.weight: colwise [-, {tp}]"
    );
    assert_eq!(
        derived(&reached, "tp=2")[3],
        "more.0.wq.weight: colwise [-, {tp}]"
    );
    assert_eq!(
        derived(&reached, "tp=2")[6],
        "head.weight: colwise [-, {tp}]"
    );
}

#[derive(Module, Debug, Parallelize)]
#[parallel(unit, axis = "model")]
struct Bare<B: Backend> {
    #[parallel(colwise)]
    up: Param<Tensor<B, 2>>,
    #[parallel(colwise)]
    up_bias: Param<Tensor<B, 1>>,
    #[parallel(rowwise, axis = "other")]
    down: Param<Tensor<B, 2>>,
    #[parallel(rowwise)]
    down_bias: Param<Tensor<B, 1>>,
    #[parallel(vocab)]
    table: Param<Tensor<B, 2>>,
    #[parallel(replicate)]
    attention: Attention<B>,
    #[parallel(skip)]
    untouched: Attention<B>,
}

fn bare() -> Bare<B> {
    Bare {
        up: param([4, 8]),
        up_bias: param([8]),
        down: param([8, 4]),
        down_bias: param([4]),
        table: param([16, 4]),
        attention: attention(),
        untouched: attention(),
    }
}

#[test]
fn bare_parameters_axes_and_skips() {
    assert_eq!(
        derived(&bare(), "model=2,other:model=2"),
        [
            "up: colwise [-, {model}] unit=",
            "up_bias: colwise [{model}] unit=",
            "down: rowwise [{other}, -] unit=",
            "down_bias: rowwise [-] unit=",
            "table: vocab [{model}, -] unit=",
            "attention.wq.weight: replicate [-, -] unit=",
            "attention.wk.weight: replicate [-, -] unit=",
            "attention.wo.weight: replicate [-, -] unit=",
            "untouched.wq.weight: replicate [-, -] unit= whole",
            "untouched.wk.weight: replicate [-, -] unit= whole",
            "untouched.wo.weight: replicate [-, -] unit= whole",
        ]
    );
}

#[derive(Module, Debug, Parallelize)]
#[parallel(checkpoint)]
struct Costly<B: Backend> {
    attention: Attention<B>,
}

#[derive(Module, Debug, Parallelize)]
struct Mixed<B: Backend> {
    costly: Costly<B>,
    #[parallel(checkpoint)]
    list: Vec<Attention<B>>,
    plain: Attention<B>,
}

#[test]
fn checkpoint_marks_a_unit() {
    let mixed = Mixed::<B> {
        costly: Costly {
            attention: attention(),
        },
        list: vec![attention()],
        plain: attention(),
    };
    let mesh = MeshShape::parse("fsdp=2").expect("a mesh");
    let specs = mixed.plan().resolve(&mixed, &mesh).expect("specs");
    let marks: Vec<(Option<&str>, ActivationCheckpoint)> = specs
        .iter()
        .map(|spec| (spec.unit.as_deref(), spec.policy.checkpoint))
        .collect();
    assert_eq!(marks[0], (Some("costly"), ActivationCheckpoint::Full));
    assert_eq!(marks[3], (Some("list.0"), ActivationCheckpoint::Full));
    assert_eq!(marks[6], (None, ActivationCheckpoint::None));
    let text = specs[3].to_text(&mesh);
    assert!(
        text.ends_with(";unit=list.0;checkpoint=full;rest=yes"),
        "{text}"
    );
}

#[derive(Module, Debug, Parallelize)]
#[parallel(strategy = "zero2")]
struct Leveled<B: Backend> {
    #[parallel(precision = "bf16")]
    first: Attention<B>,
    #[parallel(unit, strategy = "ddp", precision = "param=f16,output=f32")]
    list: Vec<Attention<B>>,
    #[parallel(colwise, strategy = "fsdp")]
    head: Linear<B>,
}

fn leveled() -> Leveled<B> {
    Leveled {
        first: attention(),
        list: vec![attention()],
        head: linear(4, 4),
    }
}

/// Unit, strategy and precision of a spec.
fn unit_options(spec: &ParamSpec) -> String {
    let unit = spec.unit.as_deref().unwrap_or("-");
    let policy = &spec.policy;
    format!("{unit} {} {}", policy.strategy, policy.precision)
}

#[test]
fn units_have_strategies_and_precisions_of_their_own() {
    let mesh = mesh("fsdp=2,tp=2");
    let options = |plan: Plan| -> Vec<String> {
        let specs = plan.resolve(&leveled(), &mesh).expect("specs");
        [0, 3, 6].map(|i| unit_options(&specs[i])).to_vec()
    };
    assert_eq!(
        options(leveled().plan()),
        [
            "first zero2 param=bf16,reduce=f32",
            "list.0 ddp param=f16,reduce=f32,output=f32",
            "head fsdp param=f32,reduce=f32"
        ]
    );
    // The same by path; of two for one module the later counts, of two around a parameter the nearer one.
    let strategy = |strategy| UnitPolicy::new().strategy(strategy);
    let precision = |precision| UnitPolicy::new().precision(precision);
    let f16 = Precision::new(Float::F16).output(Float::F32);
    let written = Plan::new()
        .unit_policy("list", strategy(ShardStrategy::Full))
        .unit_policy("list", strategy(ShardStrategy::Replicate))
        .unit_policy("", strategy(ShardStrategy::GradOptim))
        .unit_policy("head", strategy(ShardStrategy::Full))
        .unit_policy("first", precision(Precision::new(Float::BF16)))
        .unit_policy("list", precision(f16));
    assert_eq!(options(written.clone()), options(leveled().plan()));
    let own = strategy(ShardStrategy::Optim);
    let amended = leveled().plan().unit_policy("**.wq", own);
    let specs = amended.resolve(&leveled(), &mesh).expect("specs");
    assert_eq!(
        unit_options(&specs[0]),
        "first.wq zero1 param=bf16,reduce=f32"
    );
    assert_eq!(unit_options(&specs[1]), "first zero2 param=bf16,reduce=f32");
}

#[test]
fn unit_options_that_cannot_be_say_so() {
    let impossible = Precision::new(Float::BF16).reduce(Float::F16);
    assert_eq!(
        refused(
            &leveled(),
            &Plan::new().unit_policy("first", UnitPolicy::new().precision(impossible)),
            "fsdp=2"
        )
        .to_string(),
        "unit_policy(\"first\"): cannot reduce in f16 what is computed in bf16: reduce in f32 or in bf16"
    );
    let error = refused(
        &leveled(),
        &Plan::new().unit_policy("frist", UnitPolicy::new().strategy(ShardStrategy::Full)),
        "fsdp=2",
    );
    assert!(
        error.to_string().starts_with(
            "unit_policy(\"frist\") names nothing in this module; its paths, closest first: first"
        ),
        "{error}"
    );
}

/// Every text of a strategy or a precision, as the derive takes it.
macro_rules! derive_each {
    ($($key:ident: $($name:ident = $text:literal),+;)+) => {
        /// The texts the derive took, and what came of them.
        fn derived_texts() -> Vec<(&'static str, ParamSpec)> {
            let mesh = mesh("fsdp=2");
            vec![$($({
                #[derive(Module, Debug, Parallelize)]
                #[parallel($key = $text)]
                struct $name<B: Backend> {
                    linear: Linear<B>,
                }
                let module = $name::<B> { linear: linear(4, 4) };
                let specs = module.plan().resolve(&module, &mesh).expect("specs");
                ($text, specs[0].clone())
            }),+),+]
        }
    };
}

derive_each! {
    strategy: S0 = "fsdp", S1 = "zero2", S2 = "zero1", S3 = "ddp";
    precision: P0 = "bf16", P1 = "f16", P2 = "f32", P3 = "param=bf16,reduce=bf16", P4 = "reduce=f32, param=f16", P5 = "param=f32,output=bf16";
}

#[derive(Module, Debug, Parallelize)]
#[parallel(precision = "float8=rowwise")]
struct InFloat8<B: Backend> {
    up: Linear<B>,
    #[parallel(precision = "float8=off")]
    down: Linear<B>,
}

#[test]
fn a_unit_computes_in_float8_or_not() {
    let model = InFloat8::<B> {
        up: linear(16, 16),
        down: linear(16, 16),
    };
    let float8 = |plan: &Plan| -> Vec<String> {
        let specs = plan.resolve(&model, &mesh("fsdp=2")).expect("specs");
        let text = |spec: &ParamSpec| match &spec.policy.float8 {
            Some(float8) => format!("{} {} {float8}", spec.path, spec.policy.precision),
            None => format!("{} {}", spec.path, spec.policy.precision),
        };
        specs.iter().map(text).collect()
    };
    let bf16 = "param=bf16,reduce=f32";
    assert_eq!(
        float8(&model.plan()),
        [
            format!("up.weight {bf16} rowwise"),
            format!("down.weight {bf16}")
        ]
    );
    // Of the model, and of a unit by path.
    let rowwise = Float8::new(Scaling::Rowwise);
    let written = Plan::new()
        .precision(Precision::new(Float::BF16))
        .float8(rowwise.clone())
        .unit_policy("down", UnitPolicy::new().float8(None));
    assert_eq!(float8(&written), float8(&model.plan()));
    let skip = Plan::new().float8(rowwise.skip("a..b"));
    assert_eq!(
        refused(&model, &skip, "fsdp=2").to_string(),
        "the policy of the model: float8 skip(\"a..b\"): a segment between dots is empty: write `layers.*.wq`"
    );
}

#[test]
fn what_float8_skips_has_to_be_there() {
    let float8 = |pattern: &str| Float8::new(Scaling::Rowwise).skip(pattern);
    let of_unit = |pattern: &str| {
        let policy = UnitPolicy::new().float8(float8(pattern));
        Plan::new().unit_policy("layers.0", policy)
    };
    for (plan, who, pattern) in [
        (
            Plan::new().float8(float8("layer.0")),
            "the policy of the model",
            "layer.0",
        ),
        (
            of_unit("layers.0.attention.wx"),
            "unit_policy(\"layers.0\")",
            "layers.0.attention.wx",
        ),
        // There, but not in the unit.
        (of_unit("output"), "unit_policy(\"layers.0\")", "output"),
    ] {
        let error = refused(&model(), &plan, "fsdp=2");
        let ParallelError::UnknownPath { closest, .. } = &error else {
            panic!("{error}")
        };
        assert!(!closest.is_empty());
        let start = format!("{who}: float8 skip(\"{pattern}\") names nothing in this module");
        assert!(error.to_string().starts_with(&start), "{error}");
    }
    let error = refused(&model(), &Plan::new().float8(float8("layer.0")), "fsdp=2");
    assert!(
        error.to_string().contains("closest first: layers, "),
        "{error}"
    );
    for pattern in ["layers.0", "**.wq", "layers.*.attention.wq.weight", ""] {
        let plan = Plan::new().float8(float8(pattern));
        assert!(plan.resolve(&model(), &mesh("fsdp=2")).is_ok(), "{pattern}");
    }
}

#[test]
fn the_derive_knows_the_texts_of_the_types() {
    let texts = derived_texts();
    let (strategies, precisions) = texts.split_at(ShardStrategy::ALL.len());
    let found: Vec<ShardStrategy> = strategies.iter().map(|(_, s)| s.policy.strategy).collect();
    assert_eq!(found, ShardStrategy::ALL);
    for (text, spec) in strategies {
        assert_eq!(text.parse(), Ok(spec.policy.strategy));
    }
    for (text, spec) in precisions {
        assert_eq!(text.parse(), Ok(spec.policy.precision));
    }
    // What the derive refuses the types refuse, in the same words.
    let refused = include_str!("derive/unknown_strategy.stderr");
    let strategy = "zero3".parse::<ShardStrategy>().expect_err("no strategy");
    let precision = "bf8".parse::<Precision>().expect_err("no precision");
    assert!(refused.contains(&strategy.to_string()), "{strategy}");
    assert!(refused.contains(&precision.to_string()), "{precision}");
    assert!(
        ShardStrategy::ALL
            .iter()
            .all(|s| refused.contains(&s.to_string()))
    );
}

#[test]
fn an_axis_named_by_an_attribute_has_to_exist() {
    let error = refused(&bare(), &bare().plan(), "model=2,tp=2");
    assert_eq!(
        error.to_string(),
        "rowwise on down: no axis other in the mesh; its axes are model=2, tp=2"
    );
}

#[test]
fn patterns_say_what_attributes_say() {
    let plan = Plan::new()
        .vocab("tok_embeddings")
        .unit("tok_embeddings")
        .unit("layers.*")
        .sequence("layers.*.*_norm")
        .colwise("layers.*.attention.w*")
        .rowwise("**.wo")
        .vocab("output");
    assert_eq!(
        planned(&model(), &plan, "fsdp=2,tp=2"),
        derived(&model(), "fsdp=2,tp=2")
    );
}

#[test]
fn later_entries_override() {
    let plan = Plan::new().colwise("**").replicate("1");
    let pair = (linear(4, 4), linear(4, 4));
    assert_eq!(
        planned(&pair, &plan, "tp=2"),
        ["0.weight: colwise [-, {tp}]", "1.weight: replicate [-, -]"]
    );
    // A new style drops the layouts that came with the attribute's.
    let attention = attention();
    let amended = attention
        .plan()
        .replicate("wq")
        .resolve(&attention, &mesh("tp=2"))
        .expect("resolves");
    assert_eq!(amended[0].input, None);
    let amended = attention
        .plan()
        .input("wq", "[{tp}, -]")
        .colwise("wq")
        .resolve(&attention, &mesh("tp=2"))
        .expect("resolves");
    assert_eq!(
        amended[0].input.as_ref().map(|text| text.as_str()),
        Some("[{tp}, -]")
    );
}

#[test]
fn the_root_has_the_empty_path() {
    let plan = Plan::new().colwise("").unit("");
    assert_eq!(
        planned(&linear(4, 4), &plan, "tp=2"),
        ["weight: colwise [-, {tp}] unit="]
    );
}

#[test]
fn an_unknown_path_lists_what_exists() {
    let error = refused(&model(), &Plan::new().colwise("layers.*.attn.wq"), "tp=2");
    assert_eq!(
        error.to_string(),
        "colwise(\"layers.*.attn.wq\") names nothing in this module; its paths, closest first: layers.*.attention, \
         layers.*.attention.wq, layers.*.attention.wk, layers.*.attention.wo, layers.*.plain, layers.*, layers.*.plain.weight, layers \
         and 10 more"
    );
}

#[test]
fn an_unknown_axis_lists_what_exists() {
    let error = refused(
        &model(),
        &Plan::new().axis("tpp").colwise("output"),
        "fsdp=2,tp=2",
    );
    assert_eq!(
        error.to_string(),
        "colwise(\"output\"): no axis tpp in the mesh; its axes are fsdp=2, tp=2"
    );
    let error = refused(&model(), &Plan::new().input("output", "[-, {sp}]"), "tp=2");
    assert!(matches!(error, ParallelError::UnknownAxis { axis, .. } if axis == "sp"));
}

#[test]
fn styles_that_do_not_fit_say_so() {
    let error = refused(
        &model(),
        &Plan::new().colwise("layers.*.attention_norm"),
        "tp=2",
    );
    assert_eq!(
        error.to_string(),
        "layers.0.attention_norm: colwise does not fit a module whose parameters are gamma [8]: it splits a `weight` \
         of 2 dims and \
         a `bias`; use sequence or replicate, or give `layers.0.attention_norm.gamma` its own entry"
    );
    let error = refused(&model(), &Plan::new().rowwise("layers.0.attention"), "tp=2");
    assert_eq!(
        error.to_string(),
        "layers.0.attention: rowwise does not fit a module of modules (wq.weight [8, 8], wk.weight [8, 4], wo.weight \
         [8, 8]): name the \
         modules in it that hold weights"
    );
    let odd = Odd {
        kernel: param([2, 3, 4]),
        weight: param([4, 4]),
    };
    let error = refused(&odd, &Plan::new().rowwise("kernel"), "tp=2");
    assert_eq!(
        error.to_string(),
        "kernel: rowwise does not fit a parameter of 3 dims ([2, 3, 4]): it splits the 2 dims of a weight, or the one \
         of a bias; use replicate"
    );
    // Which dim of a foreign weight is the vocabulary, nobody says.
    let error = refused(&odd, &Plan::new().vocab("").replicate("kernel"), "tp=2");
    assert_eq!(
        error.to_string(),
        "(root): vocab does not fit `Odd` ([4, 4]): only `Embedding` and `Linear` say which dim is the vocabulary; use \
         rowwise for dim 0, \
         colwise for dim 1"
    );
}

#[derive(Module, Debug)]
struct Odd<B: Backend> {
    kernel: Param<Tensor<B, 3>>,
    weight: Param<Tensor<B, 2>>,
}

#[derive(Module, Debug, Parallelize)]
struct NotAWeight<B: Backend> {
    #[parallel(colwise)]
    count: usize,
    head: Linear<B>,
}

#[test]
fn a_split_of_nothing_is_an_error() {
    let module = NotAWeight {
        count: 1,
        head: linear(4, 4),
    };
    let error = refused(&module, &module.plan(), "tp=2");
    assert_eq!(
        error.to_string(),
        "count: colwise needs float parameters and there are none: remove the attribute"
    );
}

#[test]
fn heads_that_do_not_divide() {
    let error = refused(&model(), &model().plan(), "tp=8");
    assert_eq!(
        error.to_string(),
        "layers.0.attention.wk: 4 kv heads (`self.n_kv_heads`) cannot be split over axis tp (size 8): use tp = 1, 2 or \
         4, or mark it replicate / pass \
         .replicate_indivisible()"
    );
    let lines = planned(&model(), &model().plan().replicate_indivisible(), "tp=8");
    assert_eq!(
        lines[2],
        "layers.0.attention.wq.weight: colwise [-, {tp}] unit=layers.0"
    );
    assert_eq!(
        lines[3],
        "layers.0.attention.wk.weight: replicate [-, -] unit=layers.0"
    );

    let plan = Plan::new()
        .colwise("**.wk")
        .require_divisible("**.wk", 4, "tp");
    assert!(matches!(
        refused(&model(), &plan, "tp=3"),
        ParallelError::Indivisible {
            count: 4,
            size: 3,
            ..
        }
    ));
    assert_eq!(
        planned(&model(), &plan.replicate_indivisible(), "tp=3")[3],
        "layers.0.attention.wk.weight: replicate [-, -]"
    );
}

/// Layers there may be none of.
#[derive(Module, Debug)]
struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
    head: Linear<B>,
}

#[test]
fn a_unit_needs_parameters() {
    let stack = Stack::<B> {
        layers: Vec::new(),
        head: linear(4, 4),
    };
    let own = UnitPolicy::new().checkpoint(ActivationCheckpoint::Full);
    for (plan, verb) in [
        (Plan::new().unit("layers"), "unit"),
        (Plan::new().unit_policy("layers", own), "unit_policy"),
    ] {
        assert_eq!(
            refused(&stack, &plan, "fsdp=2").to_string(),
            format!(
                "{verb}(\"layers\"): layers has no float parameters, so it is no unit: remove the entry, or name what \
                 holds some"
            )
        );
    }
    // Burn does not visit a module without parameters, so that it is no path.
    for pattern in ["layer.*", "layers.*.dropout"] {
        let error = refused(&model(), &Plan::new().unit(pattern), "fsdp=2");
        assert!(
            matches!(error, ParallelError::UnknownPath { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_policy_for_an_axis_that_is_not_there() {
    let own = UnitPolicy::new().strategy_over("fdsp", ShardStrategy::Optim);
    let of_model = Plan::new().strategy_over("fdsp", ShardStrategy::Optim);
    let of_unit = Plan::new().unit_policy("layers", own);
    for (plan, who) in [
        (of_model, "the policy of the model"),
        (of_unit, "unit_policy(\"layers\")"),
    ] {
        assert_eq!(
            refused(&model(), &plan, "fsdp=2").to_string(),
            format!("{who}: no axis fdsp in the mesh; its axes are fsdp=2")
        );
    }
}

#[test]
fn patterns_and_layouts_that_cannot_be_read() {
    let error = refused(&model(), &Plan::new().unit("layers..wq"), "tp=2");
    assert!(
        matches!(error, ParallelError::MalformedPattern { .. }),
        "{error}"
    );
    let error = refused(&model(), &Plan::new().output("output", "[-, {tp]"), "tp=2");
    assert!(
        matches!(error, ParallelError::MalformedLayout { .. }),
        "{error}"
    );
    let error = refused(
        &model(),
        &Plan::new().output("output", "[-, {tp*}]"),
        "tp=2",
    );
    assert!(
        error.to_string().contains("only parameters rest"),
        "{error}"
    );
}

#[test]
fn transposed_storage_resolves() {
    let linear: Linear<B> = LinearConfig::new(4, 8)
        .with_layout(LinearLayout::Col)
        .init(&Default::default());
    assert_eq!(
        planned(&linear, &Plan::new().colwise(""), "tp=2")[0],
        "weight: colwise [-, {tp}]"
    );
}

#[derive(Module, Debug, Parallelize)]
struct Tower<B: Backend> {
    #[parallel(first)]
    embedding: Embedding<B>,
    #[parallel(stages, unit)]
    blocks: Vec<Block<B>>,
    #[parallel(last)]
    norm: RmsNorm<B>,
    #[parallel(vocab, last)]
    head: Linear<B>,
}

fn tower(blocks: usize) -> Tower<B> {
    Tower {
        embedding: EmbeddingConfig::new(16, 8).init(&Default::default()),
        blocks: (0..blocks).map(|_| block()).collect(),
        norm: RmsNormConfig::new(8).init(&Default::default()),
        head: linear(8, 16),
    }
}

/// The stages of the modules in a tower, a block by its first parameter: `0 | 0 0 1 | 1 1`.
fn stages_of<M: Module<B>>(module: &M, plan: &Plan, on: &str) -> String {
    let specs = plan.resolve(module, &mesh(on)).expect("resolves");
    let pipelines = specs.iter().flat_map(|spec| &spec.stage);
    let shared = pipelines.map(|stage| std::sync::Arc::as_ptr(&stage.pipeline));
    assert!(shared.collect::<std::collections::HashSet<_>>().len() <= 1);
    let mut found = Vec::new();
    for spec in &specs {
        let names: Vec<&str> = spec.path.split('.').collect();
        let blocks = names.iter().position(|name| *name == "blocks");
        let module = names[..blocks.map_or(names.len() - 1, |at| at + 2)].join(".");
        let stage = spec.stage.as_ref();
        let stage = stage.map_or("-".to_string(), |stage| stage.index.to_string());
        match found.last() {
            Some((last, text)) if *last == module => assert_eq!(*text, stage, "{module}"),
            _ => found.push((module, stage)),
        }
    }
    let texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
    texts.join(" ")
}

#[test]
fn stages_by_attributes() {
    let tower = tower(5);
    let plan = tower.plan();
    assert_eq!(stages_of(&tower, &plan, "fsdp=2"), "- - - - - - - -");
    assert_eq!(stages_of(&tower, &plan, "pp=1,fsdp=2"), "- - - - - - - -");
    assert_eq!(stages_of(&tower, &plan, "pp=2"), "0 0 0 0 1 1 1 1");
    assert_eq!(stages_of(&tower, &plan, "fsdp=2,pp=3"), "0 0 0 1 1 2 2 2");
    let spec = &plan.resolve(&tower, &mesh("pp=3,tp=2")).expect("resolves")[6];
    let text = spec.to_text(&mesh("pp=3,tp=2"));
    assert!(text.ends_with(";unit=blocks.1;stage=0;rest=yes"), "{text}");
    let stage = spec.stage.as_ref().expect("a stage");
    assert_eq!((stage.pipeline.stages, stage.pipeline.ranks), (3, 3));
    assert_eq!(stage.pipeline.schedule, ScheduleKind::OneFOneB.into());
}

#[derive(Module, Debug, Parallelize)]
struct Weighted<B: Backend> {
    #[parallel(stages = self.costs)]
    blocks: [Attention<B>; 4],
    /// What is inside says its own stage.
    #[parallel(last)]
    tower: Option<Tower<B>>,
    #[module(skip)]
    costs: Vec<f64>,
}

#[test]
fn stages_by_what_blocks_cost() {
    let mut module = Weighted::<B> {
        blocks: [attention(), attention(), attention(), attention()],
        tower: None,
        costs: vec![1.0, 1.0, 1.0, 3.0],
    };
    assert_eq!(stages_of(&module, &module.plan(), "pp=2"), "0 0 0 1");
    module.tower = Some(tower(2));
    assert_eq!(
        stages_of(&module, &module.plan(), "pp=2"),
        "0 0 0 1 0 0 1 1 1"
    );
    let even = module.plan().stages("blocks");
    assert_eq!(stages_of(&module, &even, "pp=2"), "0 0 1 1 0 0 1 1 1");
}

#[test]
fn stages_by_path() {
    let tower = tower(4);
    let plan = Plan::new().first("embedding").last("norm").last("head");
    let stages = |plan: &Plan, on: &str| stages_of(&tower, plan, on);
    assert_eq!(
        stages(&plan.clone().stages("blocks"), "pp=4"),
        "0 0 1 2 3 3 3"
    );
    let by_cost = plan.clone().stage_weights("blocks", &[1.0, 1.0, 1.0, 3.0]);
    assert_eq!(stages(&by_cost, "pp=2"), "0 0 0 0 1 1 1");
    let table = plan.clone().stage_table("blocks", &[1, 1, 2, 2]);
    assert_eq!(stages(&table, "pp=3"), "0 1 1 2 2 2 2");
    // The later entry counts, of an attribute too.
    let amended = tower.plan().stage("blocks.0", 1).stage("head", 0);
    assert_eq!(stages(&amended, "pp=2"), "0 1 0 1 1 1 0");
    // Two towers on stages of their own.
    let towers = (self::tower(2), self::tower(2));
    let plan = Plan::new()
        .first("0.embedding")
        .stage_table("0.blocks", &[0, 1])
        .stage("0.norm", 1)
        .stage("0.head", 1)
        .stage("1", 2)
        .stage_table("1.blocks", &[2, 3])
        .last("1.head");
    assert_eq!(stages_of(&towers, &plan, "pp=4"), "0 0 1 1 1 2 2 3 2 3");
}

#[test]
fn several_stages_per_rank() {
    let tower = tower(8);
    let pipeline = |plan: Plan| {
        let specs = plan.resolve(&tower, &mesh("pp=2")).expect("resolves");
        let stage = specs[0].stage.as_ref().expect("a stage");
        (stage.pipeline.stages, stage.pipeline.schedule.clone())
    };
    let plan = || tower.plan();
    use ScheduleKind::{GPipe, Interleaved, ZbV};
    assert_eq!(pipeline(plan().schedule(GPipe)), (2, GPipe.into()));
    assert_eq!(pipeline(plan().schedule(ZbV)), (4, ZbV.into()));
    assert_eq!(
        pipeline(plan().schedule(Interleaved)),
        (2, Interleaved.into())
    );
    let looped = plan().schedule(Interleaved).stages_per_rank(3);
    assert_eq!(pipeline(looped), (6, Interleaved.into()));
    // A table says how many stages a rank has.
    let table = ZbV.schedule(2, 2, 4).expect("a schedule");
    let by_table = plan().schedule(table.clone());
    assert_eq!(pipeline(by_table.clone()), (4, table.into()));
    for (plan, on, text) in [
        (by_table.clone(), "pp=4", "the pipeline has 4 ranks with 2"),
        (
            by_table.stages_per_rank(1),
            "pp=2",
            "the pipeline has 2 ranks with 1",
        ),
    ] {
        let error = refused(&tower, &plan, on).to_string();
        assert!(
            error.contains("a table for 2 ranks with 2 stage(s) each") && error.contains(text),
            "{error}"
        );
    }
    for (schedule, per_rank, advice) in [
        (GPipe, 2, "it has 1; use interleaved or looped-bfs for more"),
        (GPipe, 0, "it has 1; use interleaved or looped-bfs for more"),
        (Interleaved, 0, "it takes 1 or more"),
        (
            ZbV,
            1,
            "it has 2, one on the way there and one on the way back; leave stages_per_rank out",
        ),
        (
            ZbV,
            4,
            "it has 2, one on the way there and one on the way back; leave stages_per_rank out",
        ),
    ] {
        let plan = plan().schedule(schedule).stages_per_rank(per_rank);
        assert_eq!(
            refused(&tower, &plan, "pp=2").to_string(),
            format!("schedule {schedule} cannot have {per_rank} stage(s) per rank: {advice}")
        );
        assert!(plan.resolve(&tower, &mesh("dp=2")).is_ok(), "no pipeline");
    }
}

#[test]
fn stages_that_cannot_be_say_so() {
    let tower = tower(3);
    let refused = |plan: Plan, on: &str| refused(&tower, &plan, on).to_string();
    assert_eq!(
        refused(Plan::new().first("embedding").stages("blocks"), "dp=2,pp=2"),
        "norm.gamma has no stage, and axis pp of the mesh splits the model into stages: mark the list of blocks that \
         it is in `stages`, or what it is in `first` or `last`, or add .stage(\"norm.gamma\", 0) to the plan"
    );
    assert_eq!(
        refused(tower.plan(), "pp=4"),
        "stages on blocks: blocks has 3 block(s) for 4 stages: use fewer stages (a shorter pipeline axis, or fewer \
         stages_per_rank), or say by .stage_table(\"blocks\", &[..]) which stages have none of them"
    );
    assert_eq!(
        refused(tower.plan().stage_table("blocks", &[0, 1]), "pp=2"),
        "stage_table(\"blocks\"): 2 number(s) for the 3 block(s) of blocks: give one for each"
    );
    assert_eq!(
        refused(tower.plan().stage_weights("blocks", &[1.0; 4]), "pp=2"),
        "stage_weights(\"blocks\"): 4 number(s) for the 3 block(s) of blocks: give one for each"
    );
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(
            refused(
                tower.plan().stage_weights("blocks", &[1.0, weight, 1.0]),
                "pp=2"
            ),
            format!(
                "stage_weights(\"blocks\"): {weight} is no weight: give what each block costs, a number above 0"
            )
        );
    }
    assert_eq!(
        refused(tower.plan().stage_table("blocks", &[0, 1, 2]), "pp=2"),
        "stage_table(\"blocks\"): there is no stage 2: this pipeline has stages 0 to 1"
    );
    assert_eq!(
        refused(tower.plan().stage("head", 7), "pp=2"),
        "stage(\"head\"): there is no stage 7: this pipeline has stages 0 to 1"
    );
    assert_eq!(
        refused(tower.plan().stage_table("blocks", &[0, 0, 2]), "pp=3"),
        "stage 1 of 3 has no parameters: give it some, or use fewer stages (a shorter pipeline axis, or fewer \
         stages_per_rank)"
    );
    for (pattern, path) in [("norm", "norm"), ("blocks.*", "blocks.0"), ("", "(root)")] {
        assert_eq!(
            refused(tower.plan().stages(pattern), "pp=2"),
            format!(
                "stages(\"{pattern}\"): {path} is no list of blocks: name the list itself, or mark a single module \
                 first, last or .stage(\"..\", N)"
            )
        );
    }
}

#[test]
fn no_tensor_is_split_over_a_pipeline_axis() {
    let tower = tower(3);
    let plan = || tower.plan();
    for (plan, place) in [
        (plan().input("head", "[-, {pp}, -]"), "input(\"head\")"),
        (
            plan().output("head", "[-, -] + sum{pp}"),
            "output(\"head\")",
        ),
        (plan().axis("pp").colwise("head"), "colwise(\"head\")"),
        (
            plan().require_divisible("head", 4, "pp"),
            "require_divisible(\"head\")",
        ),
    ] {
        assert_eq!(
            refused(&tower, &plan, "pp=2").to_string(),
            format!(
                "{place}: no tensor is split over pp, which splits the model into stages: leave it out"
            )
        );
    }
}

#[test]
#[ignore = "texts of rustc 1.95, and six minutes the first time, for trybuild compiles Burn once more: run with --ignored"]
fn wrong_attributes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/derive/*.rs");
}
