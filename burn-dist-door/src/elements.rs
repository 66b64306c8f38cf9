//! The types of elements that a backend names: those of Burn 0.21. From 0.22 on a backend names none.

/// The types of elements that a backend names.
#[cfg(burn_021)]
pub trait Elements {
    /// The default float.
    type FloatElem: burn_backend::Element;
    /// The default int.
    type IntElem: burn_backend::Element;
    /// The default bool.
    type BoolElem: burn_backend::Element;
}

/// The types of elements that a backend names: none.
#[cfg(not(burn_021))]
pub trait Elements {}

#[cfg(not(burn_021))]
impl<T: ?Sized> Elements for T {}
