package dashboards

// The part of Grafana's dashboard format (schema 39, Grafana 11 and later) that we use. Grafana's own Go types could be taken instead once
// they are to be had where this is built.

// A Dashboard is one file of Grafana's.
type Dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"` // 1: one crosshair for all panels
	SchemaVersion int        `json:"schemaVersion"`
	Refresh       string     `json:"refresh"`
	Time          TimeRange  `json:"time"`
	Templating    Templating `json:"templating"`
	Links         []Link     `json:"links"`
	Panels        []Panel    `json:"panels"`
}

// TimeRange is what is shown at first.
type TimeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Templating holds the variables.
type Templating struct {
	List []Variable `json:"list"`
}

// A Variable is chosen at the head of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"` // datasource, query or textbox
	Query      any         `json:"query"`
	Datasource *Datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"` // 2: when the time range changes
	IncludeAll bool        `json:"includeAll,omitempty"`
	AllValue   string      `json:"allValue,omitempty"`
	Multi      bool        `json:"multi,omitempty"`
	Sort       int         `json:"sort,omitempty"`
	Current    *Choice     `json:"current,omitempty"`
}

// A Choice is the value of a variable.
type Choice struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

// A Datasource is what a query is sent to; its UID is a variable.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// A Link leads from one dashboard to the others.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	Icon        string   `json:"icon"`
	Tooltip     string   `json:"tooltip"`
	AsDropdown  bool     `json:"asDropdown"`
	TargetBlank bool     `json:"targetBlank"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

// A Panel shows a few queries in one way.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description"`
	GridPos         GridPos          `json:"gridPos"`
	Datasource      Datasource       `json:"datasource"`
	Targets         []Target         `json:"targets"`
	FieldConfig     FieldConfig      `json:"fieldConfig"`
	Options         map[string]any   `json:"options"`
	Transformations []map[string]any `json:"transformations,omitempty"`
}

// GridPos is where a panel is, on a grid 24 wide.
type GridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// A Target is a query: of Prometheus by Expr, of a store of traces by Query and what is beside it.
type Target struct {
	RefID        string     `json:"refId"`
	Datasource   Datasource `json:"datasource"`
	Expr         string     `json:"expr,omitempty"`
	LegendFormat string     `json:"legendFormat,omitempty"`
	Format       string     `json:"format,omitempty"`
	Instant      bool       `json:"instant,omitempty"`
	Range        bool       `json:"range,omitempty"`
	Exemplar     bool       `json:"exemplar,omitempty"`

	QueryType string `json:"queryType,omitempty"`
	Query     string `json:"query,omitempty"`
	Service   string `json:"service,omitempty"`
	Operation string `json:"operation,omitempty"`
	Limit     int    `json:"limit,omitempty"`
}

// FieldConfig says how values are shown.
type FieldConfig struct {
	Defaults  Field      `json:"defaults"`
	Overrides []struct{} `json:"overrides"`
}

// A Field is a value's unit and drawing.
type Field struct {
	Unit   string         `json:"unit"`
	Min    *float64       `json:"min,omitempty"`
	Custom map[string]any `json:"custom,omitempty"`
}
