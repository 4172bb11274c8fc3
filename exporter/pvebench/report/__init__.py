"""Reports: tables, charts, CSV, XLSX, HTML and PNG card."""
