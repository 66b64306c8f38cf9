//! The few messages of TensorBoard that are written, with the numbers of their fields.

use prost::Message;

/// `tensorboard.Event`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// In seconds.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    // The rest are cases of one `oneof`, of which one is set.
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorboard.SessionLog`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// `SessionStatus`.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionStatus.START`: earlier records of this step and later ones count no more.
const START: i32 = 1;

/// `tensorboard.Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `tensorboard.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

/// `tensorboard.TensorProto`, of no dim.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    /// `DataType`.
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
}

/// `DataType.DT_FLOAT`: TensorBoard's data server shows no scalars of another type.
const FLOAT: i32 = 1;

/// `tensorboard.TensorShapeProto`.
#[derive(Clone, PartialEq, Message)]
struct Shape {}

/// `tensorboard.SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
    /// `DataClass`.
    #[prost(int32, tag = "4")]
    data_class: i32,
}

/// `DataClass.DATA_CLASS_SCALAR`.
const SCALAR: i32 = 1;

/// `tensorboard.SummaryMetadata.PluginData`.
#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

/// The content of an event.
pub(super) enum Content {
    /// The form of the file.
    Version(String),
    /// The run begins, or goes on, with the event's step.
    Start,
    /// Figures.
    Scalars(Summary),
}

/// Makes an event.
pub(super) fn event(time_unix_ms: u64, step: u64, content: Content) -> Event {
    let event = Event {
        wall_time: time_unix_ms as f64 / 1e3,
        step: i64::try_from(step).unwrap_or(i64::MAX),
        ..Event::default()
    };
    match content {
        Content::Version(version) => Event {
            step: 0,
            file_version: Some(version),
            ..event
        },
        Content::Start => Event {
            session_log: Some(SessionLog { status: START }),
            ..event
        },
        Content::Scalars(summary) => Event {
            summary: Some(summary),
            ..event
        },
    }
}

/// Makes a summary of figures.
pub(super) fn scalars<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Summary {
    let value = |(name, value): (&str, f64)| Value {
        tag: name.to_string(),
        tensor: Some(Tensor {
            dtype: FLOAT,
            shape: Some(Shape {}),
            float_val: vec![value as f32],
        }),
        metadata: Some(Metadata {
            plugin_data: Some(PluginData {
                plugin_name: "scalars".to_string(),
            }),
            data_class: SCALAR,
        }),
    };
    Summary {
        value: values.map(value).collect(),
    }
}
