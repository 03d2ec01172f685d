"""What passes and emitters know of the IR: values, views, layouts, places, costs, locations, errors."""
