//! What goes wrong is named once, soon, and the same for everyone.

use std::sync::mpsc;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::mesh::MeshShape;
use burn_dist::{DTensor, DeviceMesh, ParallelizeWith, Plan};

/// Far more than any fault takes, even on a busy machine; less than the time after which ranks give up waiting for each
/// other.
const SOON: Duration = Duration::from_secs(20);

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        .timeout(Duration::from_secs(60))
        .build()
        .expect("a mesh")
}

/// Runs `program` on a thread of its own and fails if it does not end soon.
fn watched<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(program());
    });
    match receiver.recv_timeout(SOON) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("nothing came back within {SOON:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("a thread that ends well has sent its result"),
        },
    }
}

/// The message of a read that must fail.
fn failure<const D: usize>(tensor: Tensor<D>) -> String {
    tensor
        .try_into_data()
        .expect_err("the read should fail")
        .to_string()
}

fn data(shape: [usize; 2]) -> TensorData {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32).collect();
    TensorData::new(values, shape)
}

const MESHES: [&str; 4] = ["", "tp=2", "fsdp=2", "fsdp=2,tp=2"];

#[test]
fn a_failing_operation_is_named_once() {
    for text in MESHES {
        watched(move || {
            let mesh = mesh(text);
            let device = mesh.device();
            let fine = Tensor::<2>::from_data(data([4, 3]), &device) + 1.0;
            fine.to_data();
            let rows = Tensor::<1, Int>::from_ints([0, 99], &device);
            let bad = (fine.clone() * 2.0).select(0, rows);
            let error = failure(bad.clone());
            assert!(error.contains("rank "), "{text}: {error}");
            assert!(error.contains(" failed in select(f32 ["), "{text}: {error}");
            // Everything on that mesh gives the same error from now on, whatever it is.
            for again in [bad, fine.clone(), fine.clone() + 1.0] {
                assert_eq!(failure(again), error, "{text}");
            }
            let fresh = Tensor::<2>::from_data(data([4, 3]), &device);
            assert_eq!(failure(fresh.exp()), error, "{text}");
            let sync = device.sync().expect_err("a sync tells too").to_string();
            assert_eq!(sync, error, "{text}");
            let layout = fine
                .layout_text()
                .expect_err("layouts tell too")
                .to_string();
            assert!(error.contains(&layout), "{text}: {layout}");
        });
    }
}

#[test]
fn a_rank_that_fails_alone_stops_the_others() {
    for text in ["tp=2", "fsdp=2,tp=2", "tp=3"] {
        watched(move || {
            let mesh = mesh(text);
            let device = mesh.device();
            let axis = mesh.shape().axes().last().expect("an axis").name.clone();
            // Only the last rank of the axis divides by zero; then all of them meet in a sum.
            let mut values = vec![1i32; 12];
            values[11] = 0;
            let divisor = Tensor::<1, Int>::from_ints(values.as_slice(), &device)
                .redistribute(&format!("[{{{axis}}}]"))
                .expect("a layout");
            let quotient = Tensor::<1, Int>::full([12], 7, &device) / divisor;
            let error = quotient
                .sum()
                .try_into_data()
                .expect_err("a division by zero")
                .to_string();
            assert!(error.contains("failed in region(div"), "{text}: {error}");
            assert!(error.contains("divided by zero"), "{text}: {error}");
        });
    }
}

#[test]
fn other_meshes_go_on() {
    watched(|| {
        let (bad, good) = (mesh("tp=2"), mesh("tp=2"));
        let x = Tensor::<2>::from_data(data([4, 3]), &bad.device());
        let y = Tensor::<2>::from_data(data([4, 3]), &good.device()) + 1.0;
        let rows = Tensor::<1, Int>::from_ints([99], &bad.device());
        failure(x.select(0, rows));
        assert_eq!(y.sum().into_scalar::<f32>(), 78.0);
    });
}

#[test]
fn threads_that_wait_all_hear_of_it() {
    watched(|| {
        let mesh = mesh("fsdp=2,tp=2");
        let errors: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let device = mesh.device();
                        loop {
                            let x = Tensor::<2>::from_data(data([4, 3]), &device);
                            let rows = Tensor::<1, Int>::from_ints([99], &device);
                            if let Err(error) = x.exp().select(0, rows).try_into_data() {
                                return error.to_string();
                            }
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert!(
            errors.iter().all(|error| error == &errors[0]),
            "{errors:#?}"
        );
    });
}

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(8, 6).init(device),
            layers: (0..2)
                .map(|_| LinearConfig::new(6, 6).init(device))
                .collect(),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(tokens);
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }
}

#[test]
fn the_module_is_named() {
    for text in ["", "fsdp=2", "fsdp=2,tp=2"] {
        watched(move || {
            let mesh = mesh(text);
            let device = mesh.device();
            let net = Net::new(&device)
                .parallelize_with(
                    mesh.shape(),
                    &Plan::new().colwise("layers.0").rowwise("layers.1"),
                )
                .expect("a plan");
            let tokens = Tensor::<2, Int>::from_ints([[1, 2], [3, 800]], &device);
            let error = net
                .forward(tokens)
                .try_into_data()
                .expect_err("no such token")
                .to_string();
            assert!(
                error.contains("failed in embedding(f32 ["),
                "{text}: {error}"
            );
            assert!(error.contains("(module embedding)"), "{text}: {error}");
        });
    }
}

#[test]
fn a_layout_that_a_module_cannot_have_is_named() {
    watched(|| {
        let mesh = mesh("tp=2");
        let device = mesh.device();
        let plan = Plan::new().colwise("layers.0").output("layers.0", "[{tp}]");
        let net = Net::new(&device)
            .parallelize_with(mesh.shape(), &plan)
            .expect("layouts are checked against the tensors they meet");
        let tokens = Tensor::<2, Int>::from_ints([[1, 2], [3, 4]], &device);
        let error = net
            .forward(tokens)
            .try_into_data()
            .expect_err("a layout of one dim for three")
            .to_string();
        assert!(
            error.contains("layers.0.weight: the layout `[{tp}]`"),
            "{error}"
        );
    });
}

#[test]
fn wrong_meshes_are_named() {
    let error = |text: &str| -> String {
        DeviceMesh::parse(text)
            .err()
            .unwrap_or_else(|| panic!("`{text}` was accepted"))
            .to_string()
    };
    insta::assert_snapshot!(error("fsdp=2,fsdp=3"), @"axis `fsdp` appears twice: give every axis its own name");
    insta::assert_snapshot!(error("fsdp=0"), @"axis `fsdp` has size 0: an axis spans at least 1 rank; leave the axis \
        out if it is not used");
    insta::assert_snapshot!(error("fsdp"), @"cannot read the mesh `fsdp`: `fsdp` has no size; write axes as name=size, \
        for example `fsdp=2,tp=4`");
    insta::assert_snapshot!(error("fsdp=two"), @"cannot read the mesh `fsdp=two`: the size `two` of axis `fsdp` is not \
        a whole number; write axes as name=size, for example `fsdp=2,tp=4`");
    insta::assert_snapshot!(error("2=2"), @"`2` cannot name a mesh axis: start with a letter or `_`, go on with \
        letters, digits, `_` or `-`, for example `tp`");
    let devices = DeviceMesh::builder()
        .axis("tp", 2)
        .devices(&[burn::backend::flex::FlexDevice])
        .build()
        .expect_err("one device for two ranks")
        .to_string();
    insta::assert_snapshot!(devices, @"mesh `tp=2` has 2 ranks, but 1 devices were given: give one per rank, or axes \
        whose sizes multiply to 1");
}

#[test]
fn wrong_plans_are_named() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device();
    let error = |plan: Plan| -> String {
        Net::new(&device)
            .parallelize_with(mesh.shape(), &plan)
            .expect_err("the plan was accepted")
            .to_string()
    };
    insta::assert_snapshot!(error(Plan::new().colwise("layer")), @r#"colwise("layer") names nothing in this module; its paths, closest first: layers, layers.*, embedding, layers.*.bias, layers.*.weight, embedding.weight"#);
    insta::assert_snapshot!(error(Plan::new().axis("model").colwise("layers")), @r#"colwise("layers"): no axis model in the mesh; its axes are fsdp=2, tp=2"#);
    insta::assert_snapshot!(error(Plan::new().colwise("layers..weight")), @r#"colwise("layers..weight"): a segment between dots is empty: write `layers.*.wq`"#);
    let malformed = error(Plan::new().output("layers", "[{tp"));
    assert!(
        malformed
            .starts_with("output(\"layers\"): cannot read the layout, column 5: the text ends"),
        "{malformed}"
    );
    insta::assert_snapshot!(error(Plan::new().require_divisible("layers", 3, "tp").colwise("layers")), @"layers: 3 \
        parts cannot be split over axis tp (size 2): use tp = 1 or 3, or mark it replicate / pass \
        .replicate_indivisible()");
    let other = MeshShape::parse("tp=4").expect("a mesh");
    let error = Net::new(&device)
        .parallelize_with(&other, &Plan::new())
        .expect_err("another mesh")
        .to_string();
    insta::assert_snapshot!(error, @r#"embedding.weight is on a device of mesh fsdp=2,tp=2, not of tp=4: create the model on the device of the mesh it is parallelised over"#);
}

#[test]
fn a_fault_is_data_with_an_exit_code_and_leaves_a_record_where_one_is_asked_for() {
    use burn_dist::OnMesh;
    use burn_dist_launch::doctor::{diagnose, read};
    let folder = std::env::temp_dir().join(format!("burn-dist-faults-{}", std::process::id()));
    let records = folder.clone();
    watched(move || {
        for asked in [true, false] {
            let builder = DeviceMesh::builder()
                .axis("tp", 2)
                .timeout(Duration::from_secs(60));
            let builder = match asked {
                true => builder.flight_records(&records),
                false => builder,
            };
            let mesh = builder.build().expect("a mesh");
            let device = mesh.device();
            assert!(device.fault().is_none());
            let x = Tensor::<2>::from_data(data([4, 3]), &device);
            let rows = Tensor::<1, Int>::from_ints([99], &device);
            let error = failure(x.exp().select(0, rows));
            let fault = device.fault().expect("a read has failed");
            assert_eq!(fault.exit_code(), 70);
            assert!(
                matches!(fault.cause(), burn_dist::Fault::Op { .. }),
                "{fault}"
            );
            assert!(error.contains(&fault.to_string()), "{error}");
            assert_eq!(error.contains("flight record: "), asked, "{error}");
            if asked {
                let name = error
                    .split("flight record: ")
                    .nth(1)
                    .and_then(|rest| rest.split(" (`burn-dist doctor`").next());
                let record = read(name.expect("a file").as_ref()).expect("a record");
                assert_eq!((record.mesh.as_str(), record.window), ("tp=2", Some(0)));
                let told = diagnose(&[record]).expect("a diagnosis").to_string();
                assert!(
                    told.contains("failed in select(f32 [")
                        && told.contains("failed, which stopped all others"),
                    "{told}"
                );
            }
        }
    });
    std::fs::remove_dir_all(folder).expect("it was made");
}

/// Keeps the fields of all spans.
#[derive(Default)]
struct Spans(std::sync::Mutex<Vec<String>>);

impl tracing::Subscriber for &'static Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "burn_dist"
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {field}={value:?}");
            }
        }
        let mut text = Text(span.metadata().name().to_string());
        span.record(&mut text);
        let mut spans = self.0.lock().expect("nobody panics with it");
        spans.push(text.0);
        tracing::span::Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn windows_and_collectives_are_spans() {
    static SPANS: std::sync::OnceLock<Spans> = std::sync::OnceLock::new();
    let spans = SPANS.get_or_init(Spans::default);
    tracing::subscriber::set_global_default(spans).expect("this is the only one");
    watched(|| {
        for text in ["tp=2", "fsdp=2"] {
            let mesh = mesh(text);
            let device = mesh.device();
            let plan = Plan::new().colwise("layers.0").rowwise("layers.1");
            let net = Net::new(&device)
                .parallelize_with(mesh.shape(), &plan)
                .expect("a plan");
            let tokens = Tensor::<2, Int>::from_ints([[1, 2], [3, 4]], &device);
            let _ = net.forward(tokens).into_data();
        }
    });
    let spans = spans.0.lock().expect("nobody panics with it");
    for rank in 0..2 {
        let is_window = |span: &String| span.starts_with(&format!("window rank={rank} window="));
        assert!(spans.iter().any(is_window), "{spans:#?}");
        let is_sum = |span: &String| {
            span.starts_with(&format!(
                "collective rank={rank} kind=\"all_reduce\" group=[0, 1] lane=0 sequence="
            )) && span.contains(" bytes=96 module=")
        };
        assert!(spans.iter().any(is_sum), "{spans:#?}");
    }
}
