//! Which engine computes a product. The choice is a function of device, product and what has failed; it is not timed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::product::Product;

/// A device, as far as engines ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its number in this process.
    pub index: usize,
    /// Its compute capability.
    pub compute: (u32, u32),
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// The version of cuBLASLt, if it is there: 12.9.1 is 120901.
    pub cublaslt: Option<usize>,
}

/// Why an engine did not compute a product.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// None supports it.
    #[error("no engine computes {product} on a device of compute capability {}.{}: {reasons}", compute.0, compute.1)]
    Unsupported {
        /// The product.
        product: Product,
        /// The device's compute capability.
        compute: (u32, u32),
        /// The reason of each engine.
        reasons: String,
    },
    /// It could not be launched, or has computed something else.
    #[error("{engine}: {reason}")]
    Failed {
        /// Its name.
        engine: &'static str,
        /// The error in words.
        reason: String,
    },
}

burn_dist_mesh::debug_by_message!(EngineError);

/// Something that computes products in float8 on a GPU. `C` is what a product is computed with,
/// buffers and a stream; `O` is what comes of it.
pub trait Engine<C, O>: Send + Sync {
    /// Returns its name, as `explain` and a trace print it.
    fn name(&self) -> &'static str;

    /// Returns why it does not compute a product on a device.
    fn supports(&self, device: &Device, product: &Product) -> Result<(), &'static str>;

    /// Enqueues a product.
    fn launch(&self, device: &Device, product: &Product, call: &C) -> Result<O, EngineError>;

    /// Computes a small product of this kind, waits for it, and compares it with the reference. It is called before an
    /// engine is used for the first time on a device.
    fn try_out(&self, device: &Device, product: &Product, call: &C) -> Result<(), EngineError>;
}

/// A kind of product that an engine is tried out for: all but sizes.
type Kind = (usize, &'static str, Product);

/// Engines, those that are preferred first, and what has become of them.
pub struct Engines<C, O> {
    all: Vec<Box<dyn Engine<C, O>>>,
    tried: Mutex<HashMap<Kind, bool>>,
}

impl<C, O> Engines<C, O> {
    /// Returns these engines, of which an earlier one is preferred.
    pub fn new(all: Vec<Box<dyn Engine<C, O>>>) -> Self {
        Self {
            all,
            tried: Mutex::default(),
        }
    }

    /// Returns the name of the engine that computes a product: the first that supports it and has not failed at
    /// one like it.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`], with what each says.
    pub fn choose(&self, device: &Device, product: &Product) -> Result<&'static str, EngineError> {
        self.first(device, product).map(Engine::name)
    }

    fn first(&self, device: &Device, product: &Product) -> Result<&dyn Engine<C, O>, EngineError> {
        let mut reasons = Vec::new();
        for engine in &self.all {
            let supported = engine.supports(device, product);
            match supported {
                Ok(()) if self.has_failed(device, &**engine, product) => {
                    reasons.push(format!("{} has failed", engine.name()));
                }
                Ok(()) => return Ok(&**engine),
                Err(reason) => reasons.push(format!("{}: {reason}", engine.name())),
            }
        }
        Err(EngineError::Unsupported {
            product: *product,
            compute: device.compute,
            reasons: reasons.join("; "),
        })
    }

    /// Enqueues a product and returns what comes of it, and the name of the engine that computes it. One that fails, or
    /// that computes something else when it is tried out, is not used again for products like this one; a warning says
    /// so once.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if all that support it have failed.
    pub fn run(
        &self,
        device: &Device,
        product: &Product,
        call: &C,
    ) -> Result<(O, &'static str), EngineError> {
        loop {
            let engine = self.first(device, product)?;
            let kind = key(device, engine, product);
            let is_tried = self.tried().contains_key(&kind);
            let ready = match is_tried {
                true => Ok(()),
                false => engine.try_out(device, product, call),
            };
            let done = ready.and_then(|()| engine.launch(device, product, call));
            if !is_tried && done.is_ok() {
                tracing::info!(
                    engine = engine.name(),
                    device = device.index,
                    "products in float8 like {product}"
                );
            }
            self.tried().insert(kind, done.is_ok());
            match done {
                Ok(out) => return Ok((out, engine.name())),
                Err(error) => tracing::warn!(
                    "an engine for products in float8 is not used any more for products like {product}: {error}"
                ),
            }
        }
    }

    /// Returns the names of all, those that are preferred first.
    pub fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|engine| engine.name()).collect()
    }

    /// Enqueues a product with one engine, whatever has become of it: for tests and measurements.
    ///
    /// # Errors
    /// [`EngineError::Failed`], also if there is none of this name or it does not support the product.
    pub fn run_with(
        &self,
        name: &'static str,
        device: &Device,
        product: &Product,
        call: &C,
    ) -> Result<O, EngineError> {
        let failed = |reason: &str| EngineError::Failed {
            engine: name,
            reason: reason.into(),
        };
        let engine = self.all.iter().find(|engine| engine.name() == name);
        let engine = engine.ok_or_else(|| failed("there is no such engine"))?;
        engine.supports(device, product).map_err(failed)?;
        engine.launch(device, product, call)
    }

    fn has_failed(&self, device: &Device, engine: &dyn Engine<C, O>, product: &Product) -> bool {
        self.tried().get(&key(device, engine, product)) == Some(&false)
    }

    fn tried(&self) -> std::sync::MutexGuard<'_, HashMap<Kind, bool>> {
        // Entries are whole: a thread that panicked has left none half made.
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key<C, O>(device: &Device, engine: &dyn Engine<C, O>, product: &Product) -> Kind {
    let like = Product {
        m: 0,
        n: 0,
        k: 0,
        ..*product
    };
    (device.index, engine.name(), like)
}

#[cfg(test)]
mod tests;
