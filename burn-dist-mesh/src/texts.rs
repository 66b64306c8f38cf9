//! Choices as text: one name for each variant.

/// Implements [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr) by the names of the variants;
/// `$problem` is what is wrong with any other text.
#[doc(hidden)]
#[macro_export]
macro_rules! texts {
    ($type:ident, $problem:expr, $($variant:ident = $name:literal),+ $(,)?) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::TextError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::TextError::new(text, $problem)),
                }
            }
        }
    };
}
