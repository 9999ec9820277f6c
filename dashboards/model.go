package dashboards

// The part of Grafana's dashboard format (schema 39, Grafana 11 and later) that we use. Grafana's
// own Go types could replace it once they are available where fastiov is built.

// A Dashboard is one dashboard file of Grafana.
type Dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"` // 1: one crosshair over all panels
	SchemaVersion int        `json:"schemaVersion"`
	Refresh       string     `json:"refresh"`
	Time          TimeRange  `json:"time"`
	Templating    Templating `json:"templating"`
	Links         []Link     `json:"links"`
	Panels        []Panel    `json:"panels"`
}

// TimeRange is the range shown at first.
type TimeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Templating holds the variables.
type Templating struct {
	List []Variable `json:"list"`
}

// A Variable is chosen at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"` // datasource, query or textbox
	Query      any         `json:"query"`
	Datasource *Datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"` // 2: loaded again when the time range changes
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

// A Datasource receives queries. Its UID is a variable.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// A Link leads from a dashboard to the others.
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

// GridPos is a panel's position on a grid 24 wide.
type GridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// A Target is a query: to Prometheus by Expr, to a store of traces by Query and the fields beside
// it.
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

// FieldConfig determines how values are shown.
type FieldConfig struct {
	Defaults  Field      `json:"defaults"`
	Overrides []struct{} `json:"overrides"`
}

// A Field holds a value's unit and style.
type Field struct {
	Unit   string         `json:"unit"`
	Min    *float64       `json:"min,omitempty"`
	Custom map[string]any `json:"custom,omitempty"`
}
