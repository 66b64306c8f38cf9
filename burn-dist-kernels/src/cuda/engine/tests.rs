use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_dist_plan::policy::Fp8::E4M3;

use super::super::product::{Out, Scales};
use super::*;

/// The calls of engines, in order.
type Calls = RefCell<Vec<String>>;

#[derive(Default)]
struct Fake {
    name: &'static str,
    /// From which compute capability on.
    from: (u32, u32),
    blocks: bool,
    fails_to_launch: bool,
    fails_when_tried: bool,
}

impl Fake {
    fn call(&self, what: &str, fails: bool, calls: &Calls) -> Result<(), EngineError> {
        calls.borrow_mut().push(format!("{what} {}", self.name));
        match fails {
            true => Err(EngineError::Failed {
                engine: self.name,
                reason: what.into(),
            }),
            false => Ok(()),
        }
    }
}

impl Engine<Calls, ()> for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn supports(&self, device: &Device, product: &Product) -> Result<(), &'static str> {
        if device.compute < self.from {
            return Err("too old");
        }
        if !self.blocks && product.scales[0].is_of_blocks() {
            return Err("no blocks");
        }
        Ok(())
    }

    fn launch(&self, _: &Device, _: &Product, calls: &Calls) -> Result<(), EngineError> {
        self.call("launch", self.fails_to_launch, calls)
    }

    fn try_out(&self, _: &Device, _: &Product, calls: &Calls) -> Result<(), EngineError> {
        self.call("try", self.fails_when_tried, calls)
    }
}

fn engines(fast: Fake, library: Fake) -> Engines<Calls, ()> {
    let fast = Fake {
        name: "fast",
        from: (9, 0),
        blocks: true,
        ..fast
    };
    let library = Fake {
        name: "library",
        from: (8, 9),
        ..library
    };
    let slow = Fake {
        name: "slow",
        from: (8, 9),
        blocks: true,
        ..Fake::default()
    };
    Engines::new(vec![Box::new(fast), Box::new(library), Box::new(slow)])
}

fn device(compute: (u32, u32)) -> Device {
    Device {
        index: 0,
        compute,
        multiprocessors: 132,
        cublaslt: None,
    }
}

fn product(scales: [Scales; 2]) -> Product {
    Product {
        m: 64,
        n: 64,
        k: 64,
        formats: [E4M3; 2],
        scales,
        out: Out::BF16,
        bias: false,
    }
}

const TENSORS: [Scales; 2] = [Scales::Tensor; 2];
const BLOCKS: [Scales; 2] = [Scales::Tile, Scales::Block];

#[test]
fn the_first_that_supports_a_product_is_chosen() {
    let engines = engines(Fake::default(), Fake::default());
    for (compute, scales, chosen) in [
        ((9, 0), TENSORS, Some("fast")),
        ((9, 0), BLOCKS, Some("fast")),
        ((8, 9), TENSORS, Some("library")),
        ((8, 9), BLOCKS, Some("slow")),
        ((8, 0), TENSORS, None),
    ] {
        let found = engines.choose(&device(compute), &product(scales));
        assert_eq!(
            found.as_ref().ok(),
            chosen.as_ref(),
            "{compute:?} {scales:?}"
        );
    }
    let error = engines
        .choose(&device((8, 0)), &product(TENSORS))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no engine computes 64 x 64 x 64, e4m3 x e4m3 to bf16, scales Tensor and Tensor on a device of compute \
         capability 8.0: fast: too old; library: too old; slow: too old"
    );
}

#[test]
fn an_engine_is_tried_out_once_for_each_kind_of_product_and_device() {
    let engines = engines(Fake::default(), Fake::default());
    let calls = Calls::default();
    let run = |device: Device, product: Product| engines.run(&device, &product, &calls).unwrap();
    run(device((9, 0)), product(TENSORS));
    run(
        device((9, 0)),
        Product {
            m: 16,
            ..product(TENSORS)
        },
    );
    assert_eq!(calls.take(), ["try fast", "launch fast", "launch fast"]);
    run(device((9, 0)), product(BLOCKS));
    run(
        Device {
            index: 1,
            ..device((9, 0))
        },
        product(BLOCKS),
    );
    assert_eq!(
        calls.take(),
        ["try fast", "launch fast", "try fast", "launch fast"]
    );
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn one_that_fails_is_left_with_one_warning() {
    let wrong = Fake {
        fails_when_tried: true,
        ..Fake::default()
    };
    let broken = Fake {
        fails_to_launch: true,
        ..Fake::default()
    };
    let engines = engines(wrong, broken);
    let (calls, count) = (Calls::default(), Arc::new(AtomicUsize::new(0)));
    tracing::subscriber::with_default(Warnings(count.clone()), || {
        for _ in 0..3 {
            let chosen = engines.run(&device((9, 0)), &product(TENSORS), &calls);
            assert_eq!(chosen.unwrap().1, "slow");
        }
    });
    assert_eq!(
        calls.take(),
        [
            "try fast",
            "try library",
            "launch library",
            "try slow",
            "launch slow",
            "launch slow",
            "launch slow"
        ]
    );
    assert_eq!(
        count.load(Ordering::Relaxed),
        2,
        "one for each engine that failed"
    );
    assert_eq!(
        engines.choose(&device((9, 0)), &product(TENSORS)).unwrap(),
        "slow"
    );
    // Products of another kind may go well.
    assert_eq!(
        engines.choose(&device((9, 0)), &product(BLOCKS)).unwrap(),
        "fast"
    );
}

#[test]
fn nothing_is_left_when_all_fail() {
    let broken = || Fake {
        fails_to_launch: true,
        ..Fake::default()
    };
    let only = Fake {
        name: "only",
        ..broken()
    };
    let engines: Engines<Calls, ()> = Engines::new(vec![Box::new(only)]);
    let error = engines
        .run(&device((9, 0)), &product(TENSORS), &Calls::default())
        .unwrap_err();
    assert!(error.to_string().ends_with("only has failed"), "{error}");
}
