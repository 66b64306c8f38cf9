//! The types of elements that a backend names: those of Burn 0.21; from 0.22 on a backend names none.

use burn_backend::Element;

/// The types of elements that a backend names.
pub trait Elements {
    /// The default float.
    type FloatElem: Element;
    /// The default int.
    type IntElem: Element;
    /// The default bool.
    type BoolElem: Element;
}
